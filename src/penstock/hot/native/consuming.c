/* The compiled twin of consuming.py, which is the reference. */

#include "twins.h"

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

PyObject *have_prefix(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
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

PyObject *plain_acks(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
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

static const char PAIRS[] = "00010203040506070809101112131415161718192021222324"
                            "25262728293031323334353637383940414243444546474849"
                            "50515253545556575859606162636465666768697071727374"
                            "75767778798081828384858687888990919293949596979899";

static const uint64_t POWERS[DIGITS_MAX] = {
    0, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000,
    10000000000, 100000000000, 1000000000000, 10000000000000, 100000000000000,
    1000000000000000, 10000000000000000, 100000000000000000, 1000000000000000000,
    10000000000000000000u,
};

/* Count the digits of a number: from its bits, as 1233 / 4096 is the logarithm of two. */
static int count_digits(uint64_t number) {
    int digits = ((64 - __builtin_clzll(number | 1)) * 1233) >> 12;
    return digits + (number >= POWERS[digits]);
}

/* Write a number, and return where it ends. Two digits at a time: a delivery has forty. */
char *write_number(char *start, int64_t number) {
    uint64_t left = (uint64_t)number;
    char *end = start + count_digits(left), *first = end;
    for (; left >= 100; left /= 100)
        memcpy(first -= 2, PAIRS + 2 * (left % 100), 2);
    if (left >= 10)
        memcpy(first - 2, PAIRS + 2 * left, 2);
    else
        first[-1] = (char)('0' + left);
    return end;
}

/* Write what the reply subject of a delivery has behind the prefix; return where it ends. */
static char *put_numbers(char *end, const int64_t numbers[4]) {
    *end++ = '1';
    for (int i = 0; i < 4; i++) {
        *end++ = '.';
        end = write_number(end, numbers[i]);
    }
    return end;
}

static PyObject *new_reply(Slice prefix, const int64_t numbers[4]) {
    char text[NUMBERS_BYTES_MAX], *end = put_numbers(text, numbers);
    PyObject *reply = PyBytes_FromStringAndSize(NULL, prefix.size + (end - text));
    if (reply != NULL)
        put(put(PyBytes_AsString(reply), prefix), (Slice){text, end - text});
    return reply;
}

PyObject *join_data(Slice header, Slice payload) {
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
int64_t as_number(PyObject *object) {
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

static bool refuse_numbers(void) {
    PyErr_SetString(PyExc_ValueError, "sequences and times are not negative, and fit 64 bits");
    return false;
}

bool get_stored(PyObject *message, Stored *stored) {
    if (!PyTuple_Check(message) || PyTuple_Size(message) != 5) {
        PyErr_SetString(PyExc_TypeError, "a message is a tuple of 5");
        return false;
    }
    stored->sequence = as_number(PyTuple_GetItem(message, 0));
    stored->time_ns = as_number(PyTuple_GetItem(message, 1));
    if (PyErr_Occurred() || !as_slice(PyTuple_GetItem(message, 2), &stored->subject) ||
        !as_slice(PyTuple_GetItem(message, 3), &stored->header) ||
        !as_slice(PyTuple_GetItem(message, 4), &stored->payload))
        return false;
    return (stored->sequence >= 0 && stored->time_ns >= 0) || refuse_numbers();
}

/* Stored messages on their way out, and the numbers of the next one. */
typedef struct {
    PyObject *messages;
    Slice prefix;
    int64_t consumer_sequence, pending;
} Outgoing;

static bool get_outgoing(PyObject *const arguments[], Outgoing *outgoing) {
    if (!PyList_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "messages are a list");
        return false;
    }
    outgoing->messages = arguments[0];
    outgoing->consumer_sequence = as_number(arguments[2]);
    outgoing->pending = as_clamped(arguments[3]);
    return !PyErr_Occurred() && as_slice(arguments[1], &outgoing->prefix);
}

/* Look at a message, and take the numbers of its reply subject. */
static bool take_outgoing(Outgoing *outgoing, Py_ssize_t index, Stored *stored,
                          int64_t numbers[4]) {
    if (!get_stored(PyList_GetItem(outgoing->messages, index), stored))
        return false;
    if (outgoing->consumer_sequence < 0)
        return refuse_numbers();
    outgoing->pending -= outgoing->pending > 0;
    numbers[0] = stored->sequence;
    numbers[1] = outgoing->consumer_sequence;
    numbers[2] = stored->time_ns;
    numbers[3] = outgoing->pending;
    outgoing->consumer_sequence = numbers[1] < INT64_MAX ? numbers[1] + 1 : -1;
    return true;
}

static PyObject *new_delivery(Outgoing *outgoing, Py_ssize_t index) {
    Stored stored;
    int64_t numbers[4];
    if (!take_outgoing(outgoing, index, &stored, numbers))
        return NULL;
    PyObject *subject = PyTuple_GetItem(PyList_GetItem(outgoing->messages, index), 2);
    Py_INCREF(subject);
    return NEW_OPERATION(PUB, subject, new_reply(outgoing->prefix, numbers),
                         PyLong_FromSsize_t(stored.header.size),
                         PyLong_FromSsize_t(stored.header.size + stored.payload.size),
                         join_data(stored.header, stored.payload));
}

PyObject *first_deliveries(PyObject *module, PyObject *const arguments[],
                                  Py_ssize_t count) {
    (void)module;
    Outgoing outgoing;
    if (count != 4) {
        PyErr_Format(PyExc_TypeError, "expected 4 arguments, got %zd", count);
        return NULL;
    }
    if (!get_outgoing(arguments, &outgoing))
        return NULL;
    PyObject *operations = PyList_New(0);
    for (Py_ssize_t i = 0; operations != NULL && i < PyList_Size(arguments[0]); i++)
        if (!append_new(operations, new_delivery(&outgoing, i)))
            Py_CLEAR(operations);
    return operations;
}

/* What a delivery has beside subject, sid, prefix, header and payload takes at most: `HMSG `,
 * four spaces, two sizes, the numbers and two line ends. */
#define DELIVERY_BYTES_MAX (5 + 4 + 2 * DIGITS_MAX + NUMBERS_BYTES_MAX + 4)

/* Deliveries to one subscriber in the making. */
typedef struct {
    Slice sid;
    char *start, *end;
    Py_ssize_t capacity, payload_bytes;
} Encoding;

static bool reserve(Encoding *encoding, Py_ssize_t size) {
    Py_ssize_t used = encoding->end - encoding->start;
    if (size <= encoding->capacity - used)
        return true;
    Py_ssize_t capacity = 2 * encoding->capacity + size;
    char *grown = PyMem_Realloc(encoding->start, (size_t)capacity);
    if (grown == NULL) {
        PyErr_NoMemory();
        return false;
    }
    *encoding = (Encoding){encoding->sid, grown, grown + used, capacity, encoding->payload_bytes};
    return true;
}

/* Write one delivery; return what counts against the `max_bytes` of a request, or -1. */
static Py_ssize_t put_delivery(Encoding *encoding, Outgoing *outgoing, Py_ssize_t index) {
    Stored stored;
    int64_t numbers[4];
    Slice prefix = outgoing->prefix, sid = encoding->sid;
    if (!take_outgoing(outgoing, index, &stored, numbers))
        return -1;
    Py_ssize_t size = stored.header.size + stored.payload.size;
    if (!reserve(encoding, size + stored.subject.size + sid.size + prefix.size + DELIVERY_BYTES_MAX))
        return -1;
    bool has_header = stored.header.size > 0;
    char *end = put(encoding->end, has_header ? (Slice){"HMSG ", 5} : (Slice){"MSG ", 4});
    end = put(put(put(put(end, stored.subject), SPACE), sid), SPACE);
    char *reply = end;
    end = put_numbers(put(end, prefix), numbers);
    Py_ssize_t reply_bytes = end - reply;
    if (has_header)
        end = write_number(put(end, SPACE), stored.header.size);
    end = put(write_number(put(end, SPACE), size), (Slice){CRLF, 2});
    encoding->end = put(put(put(end, stored.header), stored.payload), (Slice){CRLF, 2});
    encoding->payload_bytes += size;
    return stored.subject.size + reply_bytes + size;
}

/* Write all deliveries, and add up what counts for each request. */
static bool put_deliveries(Encoding *encoding, Outgoing *outgoing, Py_ssize_t sums[],
                           Py_ssize_t request_count) {
    Py_ssize_t request = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(outgoing->messages); i++) {
        Py_ssize_t counted = put_delivery(encoding, outgoing, i);
        if (counted < 0)
            return false;
        sums[request] += counted;
        request = request + 1 < request_count ? request + 1 : 0;
    }
    return true;
}

static PyObject *new_sizes(const Py_ssize_t sizes[], Py_ssize_t count) {
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++)
        if (!append_new(list, PyLong_FromSsize_t(sizes[i])))
            Py_CLEAR(list);
    return list;
}

PyObject *encode_deliveries(PyObject *module, PyObject *const arguments[],
                                   Py_ssize_t count) {
    (void)module;
    Outgoing outgoing;
    Encoding encoding = {0};
    if (count != 6) {
        PyErr_Format(PyExc_TypeError, "expected 6 arguments, got %zd", count);
        return NULL;
    }
    Py_ssize_t request_count = PyLong_AsSsize_t(arguments[5]);
    if (PyErr_Occurred() || !get_outgoing(arguments, &outgoing) ||
        !as_slice(arguments[4], &encoding.sid))
        return NULL;
    if (request_count < 1) {
        PyErr_SetString(PyExc_ValueError, "there is at least one request");
        return NULL;
    }
    Py_ssize_t *sums = PyMem_Calloc((size_t)request_count, sizeof(Py_ssize_t));
    PyObject *result = NULL;
    if (sums == NULL)
        PyErr_NoMemory();
    else if (put_deliveries(&encoding, &outgoing, sums, request_count))
        result = NEW_TUPLE(
            PyBytes_FromStringAndSize(encoding.start, encoding.end - encoding.start),
            PyLong_FromSsize_t(encoding.payload_bytes), new_sizes(sums, request_count));
    PyMem_Free(encoding.start);
    PyMem_Free(sums);
    return result;
}
