/*
 * The compiled twin of consuming.py, which is the reference. Included by _speedups.c,
 * after _deliveries.h.
 */

#define DIGITS_MAX 20
#define NUMBERS_BYTES_MAX (2 + 4 * (DIGITS_MAX + 1))

static bool equals(Slice slice, const char *literal, Py_ssize_t size) {
    return slice.size == size && memcmp(slice.start, literal, (size_t)size) == 0;
}

/* Take a number and the dot behind it; -1 if that is not what comes. */
static int64_t take_number(Cursor *cursor) {
    const char *byte = cursor->position;
    uint64_t number = 0;
    while (byte < cursor->end && *byte >= '0' && *byte <= '9' &&
           byte - cursor->position < NUMBER_DIGITS_MAX)
        number = number * 10 + (uint64_t)(*byte++ - '0');
    if (byte == cursor->position || byte == cursor->end || *byte != '.' || number > INT64_MAX)
        return -1;
    cursor->position = byte + 1;
    return (int64_t)number;
}

static PyObject *have_prefix(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    (void)module;
    Slice prefix, subject;
    if (count != 2 || !PyList_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a list of publishes and a prefix");
        return NULL;
    }
    if (!as_slice(arguments[1], &prefix))
        return NULL;
    bool have = true;
    for (Py_ssize_t i = 0; have && i < PyList_Size(arguments[0]); i++) {
        PyObject *publish = PyList_GetItem(arguments[0], i);
        if (!is_publish(publish) || !as_slice(PyTuple_GetItem(publish, 1), &subject))
            return NULL;
        have = take_literal(&(Cursor){subject.start, subject.start + subject.size}, prefix.start,
                            prefix.size);
    }
    return PyBool_FromLong(have);
}

/* Return the stream sequence of a plain ack, -1 for another publish, -2 after an error. */
static int64_t plain_ack(PyObject *publish, Slice prefix) {
    Slice subject, reply, data;
    if (!is_publish(publish) || !as_slice(PyTuple_GetItem(publish, 1), &subject) ||
        !as_slice(PyTuple_GetItem(publish, 2), &reply) ||
        !as_slice(PyTuple_GetItem(publish, 5), &data))
        return -2;
    bool is_plain = equals(data, "+ACK\r\n", 6) || equals(data, "\r\n", 2) ||
                    equals(data, "+OK\r\n", 5);
    Cursor cursor = {subject.start, subject.start + subject.size};
    if (reply.size > 0 || !is_plain || !take_literal(&cursor, prefix.start, prefix.size) ||
        take_number(&cursor) < 0)
        return -1;
    return take_number(&cursor);
}

static PyObject *plain_acks(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    (void)module;
    Slice prefix;
    if (count != 3 || !PyList_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a list of publishes, a prefix and an index");
        return NULL;
    }
    Py_ssize_t index = PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred() || !as_slice(arguments[1], &prefix))
        return NULL;
    PyObject *sequences = PyList_New(0);
    if (sequences == NULL)
        return NULL;
    for (; index >= 0 && index < PyList_Size(arguments[0]); index++) {
        int64_t sequence = plain_ack(PyList_GetItem(arguments[0], index), prefix);
        if (sequence == -1)
            break;
        if (sequence < 0 || !append_new(sequences, PyLong_FromLongLong(sequence))) {
            Py_DECREF(sequences);
            return NULL;
        }
    }
    return NEW_TUPLE(sequences, PyLong_FromSsize_t(index));
}

/* Write a number, and return where it ends. */
static char *write_number(char *end, int64_t number) {
    char digits[DIGITS_MAX];
    int count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    while (count > 0)
        *end++ = digits[--count];
    return end;
}

/* Return the reply subject of a delivery: the prefix, and the numbers with dots between. */
static PyObject *new_reply(Slice prefix, const int64_t numbers[4]) {
    char text[NUMBERS_BYTES_MAX], *end = text;
    *end++ = '1';
    for (int i = 0; i < 4; i++) {
        *end++ = '.';
        end = write_number(end, numbers[i]);
    }
    PyObject *reply = PyBytes_FromStringAndSize(NULL, prefix.size + (end - text));
    if (reply != NULL) {
        char *start = PyBytes_AsString(reply);
        memcpy(start, prefix.start, (size_t)prefix.size);
        memcpy(start + prefix.size, text, (size_t)(end - text));
    }
    return reply;
}

static PyObject *join_data(Slice header, Slice payload) {
    PyObject *data = PyBytes_FromStringAndSize(NULL, header.size + payload.size + 2);
    if (data != NULL) {
        char *start = PyBytes_AsString(data);
        memcpy(start, header.start, (size_t)header.size);
        memcpy(start + header.size, payload.start, (size_t)payload.size);
        memcpy(start + header.size + payload.size, CRLF, 2);
    }
    return data;
}

/* Return a number; -1 for one that is negative or too large, and after an error. */
static int64_t as_number(PyObject *object) {
    int overflow;
    int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0 && number >= 0 ? number : -1;
}

/* Return a number; 0 for a negative one, and the largest there is for one too large. */
static int64_t as_clamped(PyObject *object) {
    int overflow;
    int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow > 0)
        return INT64_MAX;
    return number > 0 ? number : 0;
}

/* Return a stored message as a publish; `numbers` lacks its sequence and its time. */
static PyObject *new_delivery(PyObject *message, Slice prefix, int64_t numbers[4]) {
    Slice header, payload;
    if (!PyTuple_Check(message) || PyTuple_Size(message) != 5) {
        PyErr_SetString(PyExc_TypeError, "a message is a tuple of 5");
        return NULL;
    }
    PyObject *subject = PyTuple_GetItem(message, 2);
    numbers[0] = as_number(PyTuple_GetItem(message, 0));
    numbers[2] = as_number(PyTuple_GetItem(message, 1));
    if (PyErr_Occurred() || !as_slice(PyTuple_GetItem(message, 3), &header) ||
        !as_slice(PyTuple_GetItem(message, 4), &payload))
        return NULL;
    if (numbers[0] < 0 || numbers[1] < 0 || numbers[2] < 0) {
        PyErr_SetString(PyExc_ValueError,
                        "sequences and times are not negative, and fit 64 bits");
        return NULL;
    }
    Py_INCREF(subject);
    return NEW_TUPLE(PyLong_FromLong(PUB), subject, new_reply(prefix, numbers),
                     PyLong_FromSsize_t(header.size),
                     PyLong_FromSsize_t(header.size + payload.size), join_data(header, payload));
}

static PyObject *first_deliveries(PyObject *module, PyObject *const arguments[],
                                  Py_ssize_t count) {
    (void)module;
    Slice prefix;
    if (count != 4 || !PyList_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a list of messages, a prefix and two numbers");
        return NULL;
    }
    int64_t consumer_sequence = as_number(arguments[2]);
    int64_t pending = as_clamped(arguments[3]);
    if (PyErr_Occurred() || !as_slice(arguments[1], &prefix))
        return NULL;
    PyObject *operations = PyList_New(0);
    for (Py_ssize_t i = 0; operations != NULL && i < PyList_Size(arguments[0]); i++) {
        pending = pending > 0 ? pending - 1 : 0;
        int64_t numbers[4] = {0, consumer_sequence, 0, pending};
        PyObject *message = PyList_GetItem(arguments[0], i);
        consumer_sequence = consumer_sequence < INT64_MAX ? consumer_sequence + 1 : -1;
        if (!append_new(operations, new_delivery(message, prefix, numbers)))
            Py_CLEAR(operations);
    }
    return operations;
}
