/* The compiled twin of answers.py, which is the reference. */

#include "twins.h"

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

static bool is_child(Slice subject, Slice parent) {
    Py_ssize_t skip = parent.size > 0 ? parent.size + 1 : 0;
    return subject.size > skip && memcmp(subject.start, parent.start, (size_t)parent.size) == 0 &&
           (skip == 0 || subject.start[parent.size] == '.') &&
           memchr(subject.start + skip, '.', (size_t)(subject.size - skip)) == NULL;
}

PyObject *are_siblings(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    (void)module;
    Slice subject, parent;
    if (count != 2 || !PyList_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a list of subjects and their parent");
        return NULL;
    }
    if (!as_slice(arguments[1], &parent))
        return NULL;
    bool are = true;
    for (Py_ssize_t i = 0; are && i < PyList_Size(arguments[0]); i++) {
        if (!as_slice(PyList_GetItem(arguments[0], i), &subject))
            return NULL;
        are = is_child(subject, parent);
    }
    return PyBool_FromLong(are);
}

PyObject *numbered_answers(PyObject *module, PyObject *const arguments[],
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

#define SECOND_NS 1000000000
#define DAY_SECONDS 86400
#define TIME_BYTES_MAX 36 /* a year has four digits until 2262, where the nanoseconds end */

/* Write a number with leading zeros; return where it ends. */
static char *put_digits(char *start, int64_t number, int width) {
    for (int i = width - 1; i >= 0; i--, number /= 10)
        start[i] = (char)('0' + number % 10);
    return start + width;
}

/* Write a date, given in days since 1970: years are counted from March, so that a leap day
 * is the last of its year, in eras of 400 years, which all have the same number of days. */
static char *put_date(char *end, int64_t days) {
    days += 719468; /* since 1 March of the year 0 */
    int64_t era = days / 146097, day = days - era * 146097;
    int64_t year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    day -= 365 * year + year / 4 - year / 100;
    int64_t month = (5 * day + 2) / 153; /* March is 0 */
    day -= (153 * month + 2) / 5;
    year += era * 400 + (month >= 10);
    end = put_digits(end, year, 4);
    *end++ = '-';
    end = put_digits(end, month < 10 ? month + 3 : month - 9, 2);
    *end++ = '-';
    return put_digits(end, day + 1, 2);
}

/* Write a time as RFC 3339 in UTC, to the nanosecond, as timestamp() of times.py does. */
static char *put_timestamp(char *end, int64_t time_ns) {
    int64_t seconds = time_ns / SECOND_NS, fraction = time_ns - seconds * SECOND_NS;
    int64_t days = seconds / DAY_SECONDS, second = seconds - days * DAY_SECONDS;
    end = put_date(end, days);
    const int64_t parts[] = {second / 3600, second / 60 % 60, second % 60};
    for (int i = 0; i < 3; i++) {
        *end++ = i == 0 ? 'T' : ':';
        end = put_digits(end, parts[i], 2);
    }
    if (fraction > 0) {
        *end++ = '.';
        end = put_digits(end, fraction, 9);
        while (end[-1] == '0')
            end--;
    }
    *end++ = 'Z';
    return end;
}

/* What the headers of an answer add to those that the message has of its own. */
static const Slice STREAM_HEADER = {"Nats-Stream: ", 13}, SUBJECT_HEADER = {"\r\nNats-Subject: ", 16},
                   SEQUENCE_HEADER = {"\r\nNats-Sequence: ", 17},
                   TIME_HEADER = {"\r\nNats-Time-Stamp: ", 19}, HEADERS_END = {"\r\n\r\n", 4},
                   FIRST_LINE = {"NATS/1.0\r\n", 10};

/* Write the header block of an answer; return where it ends. */
static char *put_origin(char *end, Slice stream, const Stored *stored) {
    Slice own = stored->header.size > 0 ? stored->header : FIRST_LINE;
    bool has_end = own.size >= 2 && memcmp(own.start + own.size - 2, CRLF, 2) == 0;
    if (stored->header.size > 0 && has_end)
        own.size -= 2;
    end = put(put(put(end, own), STREAM_HEADER), stream);
    end = put(put(end, SUBJECT_HEADER), stored->subject);
    end = write_number(put(end, SEQUENCE_HEADER), stored->sequence);
    end = put_timestamp(put(end, TIME_HEADER), stored->time_ns);
    return put(end, HEADERS_END);
}

PyObject *stored_answer(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    (void)module;
    Slice stream;
    Stored stored;
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "expected 3 arguments, got %zd", count);
        return NULL;
    }
    if (!as_slice(arguments[1], &stream) || !get_stored(arguments[2], &stored))
        return NULL;
    Py_ssize_t size_max = stored.header.size + stream.size + stored.subject.size +
                          DIGITS_MAX + TIME_BYTES_MAX + 80;
    char small[512], *block = size_max <= LENGTH(small) ? small : PyMem_Malloc((size_t)size_max);
    if (block == NULL)
        return PyErr_NoMemory();
    Py_ssize_t size = put_origin(block, stream, &stored) - block;
    PyObject *data = join_data((Slice){block, size}, stored.payload);
    if (block != small)
        PyMem_Free(block);
    Py_INCREF(arguments[0]);
    return NEW_OPERATION(PUB, arguments[0], PyBytes_FromStringAndSize("", 0),
                         PyLong_FromSsize_t(size), PyLong_FromSsize_t(size + stored.payload.size),
                         data);
}
