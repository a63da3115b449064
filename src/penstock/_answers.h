/*
 * The compiled twin of answers.py, which is the reference. Included by _speedups.c,
 * after _consuming.h.
 */

/* What all answers have in common. */
typedef struct {
    Slice sid, before, after;
} AnswerFrame;

/* An upper bound of what one answer takes: two numbers, `MSG `, two spaces and two line ends. */
static Py_ssize_t answer_bytes_max(const AnswerFrame *frame, Slice reply) {
    return reply.size + frame->sid.size + frame->before.size + frame->after.size +
           2 * DIGITS_MAX + 10;
}

/* Return the upper bound for all replies; -1 after an error. */
static Py_ssize_t answers_bytes_max(const AnswerFrame *frame, PyObject *replies) {
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(replies); i++) {
        Slice reply;
        if (!as_slice(PyList_GetItem(replies, i), &reply))
            return -1;
        size += answer_bytes_max(frame, reply);
    }
    return size;
}

/* Write one answer; return where it ends, and add to the size of the payloads. */
static char *put_answer(char *end, const AnswerFrame *frame, Slice reply, int64_t number,
                        Py_ssize_t *payload_bytes) {
    char digits[DIGITS_MAX];
    Py_ssize_t digit_count = write_number(digits, number) - digits;
    Py_ssize_t size = frame->before.size + digit_count + frame->after.size;
    *payload_bytes += size;
    end = put(put(end, (Slice){"MSG ", 4}), reply);
    end = put(put(end, SPACE), frame->sid);
    end = write_number(put(end, SPACE), size);
    end = put(put(end, (Slice){CRLF, 2}), frame->before);
    end = put(put(end, (Slice){digits, digit_count}), frame->after);
    return put(end, (Slice){CRLF, 2});
}

static PyObject *new_answers(const AnswerFrame *frame, PyObject *replies, int64_t number) {
    Py_ssize_t size_max = answers_bytes_max(frame, replies), payload_bytes = 0;
    char *start = size_max >= 0 ? PyMem_Malloc((size_t)size_max + 1) : NULL, *end = start;
    if (start == NULL)
        return size_max >= 0 ? PyErr_NoMemory() : NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(replies); i++) {
        Slice reply = EMPTY;
        as_slice(PyList_GetItem(replies, i), &reply); /* looked at before */
        end = put_answer(end, frame, reply, number++, &payload_bytes);
    }
    PyObject *encoded = PyBytes_FromStringAndSize(start, end - start);
    PyMem_Free(start);
    return NEW_TUPLE(encoded, PyLong_FromSsize_t(payload_bytes));
}

static PyObject *numbered_answers(PyObject *module, PyObject *const arguments[],
                                  Py_ssize_t count) {
    (void)module;
    AnswerFrame frame;
    if (count != 5 || !PyList_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "expected replies, sid, what is around the number, it");
        return NULL;
    }
    if (!as_slice(arguments[1], &frame.sid) || !as_slice(arguments[2], &frame.before) ||
        !as_slice(arguments[3], &frame.after))
        return NULL;
    int64_t number = as_number(arguments[4]);
    if (PyErr_Occurred())
        return NULL;
    if (number < 0 || number > INT64_MAX - PyList_Size(arguments[0])) {
        PyErr_SetString(PyExc_ValueError, "numbers are not negative, and fit 64 bits");
        return NULL;
    }
    return new_answers(&frame, arguments[0], number);
}
