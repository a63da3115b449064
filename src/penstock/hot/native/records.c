/* The compiled twin of records.py, which is the reference. */

#include "twins.h"

#define SUBJECT_BYTES_MAX 0xFFFF

enum { MESSAGE = 1, MESSAGE_WITH_HEADERS = 2 };

static inline char *put_little(char *target, uint64_t number, int size) {
    for (int i = 0; i < size; i++)
        target[i] = (char)(unsigned char)(number >> (8 * i));
    return target + size;
}

/* A message to store, and how long its record is. */
typedef struct {
    Slice subject, headers, payload;
    int64_t time;
    Py_ssize_t length;
} Entry;

static bool refuse_entry(void) {
    PyErr_SetString(PyExc_ValueError, "a message does not fit a record");
    return false;
}

/* Look into the tuple of an entry, which must outlive `entry`. */
static bool get_entry(PyObject *tuple, Entry *entry) {
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != 4) {
        PyErr_SetString(PyExc_ValueError, "an entry is a tuple of 4");
        return false;
    }
    if (!as_slice(PyTuple_GetItem(tuple, 0), &entry->subject) ||
        !as_slice(PyTuple_GetItem(tuple, 1), &entry->headers) ||
        !as_slice(PyTuple_GetItem(tuple, 2), &entry->payload))
        return false;
    entry->time = PyLong_AsLongLong(PyTuple_GetItem(tuple, 3));
    if (entry->time == -1 && PyErr_Occurred())
        return PyErr_ExceptionMatches(PyExc_OverflowError) && refuse_entry();
    entry->length = RECORD_BYTES_MIN + entry->subject.size + entry->payload.size;
    if (entry->headers.size > 0)
        entry->length += 4 + entry->headers.size;
    bool fits = entry->subject.size <= SUBJECT_BYTES_MAX && (uint64_t)entry->length <= UINT32_MAX;
    return fits || refuse_entry();
}

static char *put_record(char *target, const Entry *entry, uint64_t sequence, uint32_t salt) {
    bool has_headers = entry->headers.size > 0;
    char *body = target + 4, *end = put_little(body, (uint64_t)entry->length, 4);
    end = put_little(end, RECORD_MARK, 2);
    end = put_little(end, has_headers ? MESSAGE_WITH_HEADERS : MESSAGE, 1);
    end = put_little(end, 0, 1);
    end = put_little(end, (uint64_t)entry->subject.size, 2);
    end = put_little(end, sequence, 8);
    end = put_little(end, (uint64_t)entry->time, 8);
    end = put(end, entry->subject);
    if (has_headers)
        end = put(put_little(end, (uint64_t)entry->headers.size, 4), entry->headers);
    end = put(end, entry->payload);
    put_little(target, checksum_of((Slice){body, end - body}, salt), 4);
    return end;
}

static PyObject *new_reference(PyObject *object) {
    Py_XINCREF(object);
    return object;
}

/* Return a publish as an entry; NULL without an error if it is not plain. */
static PyObject *new_entry(PyObject *publish, PyObject *no_headers, PyObject *time_ns) {
    Slice data;
    Py_ssize_t header_bytes, size;
    if (!is_publish(publish) || !get_number(publish, FIELD_HEADER_BYTES, &header_bytes) ||
        !get_number(publish, FIELD_SIZE, &size) || !get_bytes(publish, FIELD_DATA, &data))
        return NULL;
    if (header_bytes != 0 || size < 0 || data.size != size + 2)
        return NULL;
    return NEW_TUPLE(new_reference(PyTuple_GetItem(publish, 1)), new_reference(no_headers),
                     new_bytes((Slice){data.start, size}), new_reference(time_ns));
}

PyObject *plain_entries(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    (void)module;
    if (count != 2 || !PyList_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a list of publishes and a time");
        return NULL;
    }
    PyObject *entries = PyList_New(0), *replies = PyList_New(0), *no_headers = new_bytes(EMPTY);
    bool complete = entries != NULL && replies != NULL && no_headers != NULL;
    for (Py_ssize_t i = 0; complete && i < PyList_Size(arguments[0]); i++) {
        PyObject *publish = PyList_GetItem(arguments[0], i);
        complete = append_new(entries, new_entry(publish, no_headers, arguments[1])) &&
                   append_new(replies, new_reference(PyTuple_GetItem(publish, 2)));
    }
    Py_XDECREF(no_headers);
    if (complete)
        return NEW_TUPLE(entries, replies);
    Py_XDECREF(entries);
    Py_XDECREF(replies);
    return PyErr_Occurred() ? NULL : new_reference(Py_None);
}

/* Return how long each record is, and how long they are together. */
static PyObject *new_lengths(PyObject *entries, Py_ssize_t *size) {
    PyObject *lengths = PyList_New(0);
    Entry entry;
    *size = 0;
    for (Py_ssize_t i = 0; lengths != NULL && i < PyTuple_Size(entries); i++) {
        if (!get_entry(PyTuple_GetItem(entries, i), &entry) ||
            !append_new(lengths, PyLong_FromSsize_t(entry.length)))
            Py_CLEAR(lengths);
        else
            *size += entry.length;
    }
    return lengths;
}

static PyObject *new_records(PyObject *entries, Py_ssize_t size, uint64_t sequence, uint32_t salt) {
    char *target;
    PyObject *records = new_buffer(size, &target);
    Entry entry;
    for (Py_ssize_t i = 0; records != NULL && i < PyTuple_Size(entries); i++) {
        if (get_entry(PyTuple_GetItem(entries, i), &entry))
            target = put_record(target, &entry, sequence++, salt);
        else
            Py_CLEAR(records);
    }
    return records;
}

/* Return the first of some sequences, all of which must fit 64 bits. */
static bool get_first_sequence(PyObject *number, Py_ssize_t count, uint64_t *sequence) {
    *sequence = 0;
    if (count == 0)
        return true;
    *sequence = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred())
        return PyErr_ExceptionMatches(PyExc_OverflowError) && refuse_entry();
    return *sequence <= UINT64_MAX - (uint64_t)(count - 1) || refuse_entry();
}

PyObject *encode_records(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    (void)module;
    uint64_t sequence;
    Py_ssize_t size;
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "expected 3 arguments, got %zd", count);
        return NULL;
    }
    uint32_t salt = (uint32_t)PyLong_AsUnsignedLongMask(arguments[2]);
    /* A tuple of its own keeps every entry alive, whatever becomes of the list. */
    PyObject *entries = PyErr_Occurred() ? NULL : PySequence_Tuple(arguments[1]);
    if (entries == NULL)
        return NULL;
    PyObject *lengths = NULL, *result = NULL;
    if (get_first_sequence(arguments[0], PyTuple_Size(entries), &sequence))
        lengths = new_lengths(entries, &size);
    if (lengths != NULL)
        result = NEW_TUPLE(new_records(entries, size, sequence, salt), lengths);
    Py_DECREF(entries);
    return result;
}

/* Return the message whose record these bytes start with, or None if there is none. */
static PyObject *new_message(Slice bytes, uint32_t salt) {
    const char *record = bytes.start;
    if (bytes.size < RECORD_BYTES_MIN)
        return new_reference(Py_None);
    uint64_t length = get_little(record + 4, 4);
    if (length < RECORD_BYTES_MIN || length > (uint64_t)bytes.size)
        return new_reference(Py_None);
    Slice checked = {record + 4, (Py_ssize_t)length - 4};
    if (checksum_of(checked, salt) != get_little(record, 4))
        return new_reference(Py_None);
    uint64_t mark = get_little(record + 8, 2), kind = get_little(record + 10, 1);
    Slice subject = {record + RECORD_BYTES_MIN, (Py_ssize_t)get_little(record + 12, 2)};
    Slice headers = EMPTY;
    Py_ssize_t left = (Py_ssize_t)length - RECORD_BYTES_MIN - subject.size;
    if (mark != RECORD_MARK || left < 0)
        return new_reference(Py_None);
    const char *body = subject.start + subject.size;
    if (kind == MESSAGE_WITH_HEADERS) {
        if (left < 4 || get_little(body, 4) > (uint64_t)(left - 4))
            return new_reference(Py_None);
        headers = (Slice){body + 4, (Py_ssize_t)get_little(body, 4)};
        body += 4 + headers.size;
        left -= 4 + headers.size;
    } else if (kind != MESSAGE)
        return new_reference(Py_None);
    return NEW_TUPLE(PyLong_FromUnsignedLongLong(get_little(record + 14, 8)),
                     PyLong_FromLongLong((int64_t)get_little(record + 22, 8)), new_bytes(subject),
                     new_bytes(headers), new_bytes((Slice){body, left}));
}

/* Return the place of an offset in a buffer of `size` bytes, or -1; -2 after an error. */
static Py_ssize_t find_place(PyObject *offset, PyObject *base, Py_ssize_t size) {
    PyObject *difference = PyNumber_Subtract(offset, base);
    if (difference == NULL)
        return -2;
    /* NULL: what is too large for C is clamped, and is outside all the same. */
    Py_ssize_t place = PyNumber_AsSsize_t(difference, NULL);
    Py_DECREF(difference);
    if (place == -1 && PyErr_Occurred())
        return -2;
    return place >= 0 && place <= size ? place : -1;
}

PyObject *decode_messages(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    (void)module;
    Py_buffer buffer;
    if (count != 4) {
        PyErr_Format(PyExc_TypeError, "expected 4 arguments, got %zd", count);
        return NULL;
    }
    uint32_t salt = (uint32_t)PyLong_AsUnsignedLongMask(arguments[3]);
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[0], &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *offsets = PyObject_GetIter(arguments[1]), *offset;
    PyObject *messages = offsets != NULL ? PyList_New(0) : NULL;
    while (messages != NULL && (offset = PyIter_Next(offsets)) != NULL) {
        Py_ssize_t place = find_place(offset, arguments[2], buffer.len);
        Slice bytes = place < 0 ? EMPTY : (Slice){(char *)buffer.buf + place, buffer.len - place};
        if (place == -2 || !append_new(messages, new_message(bytes, salt)))
            Py_CLEAR(messages);
        Py_DECREF(offset);
    }
    if (PyErr_Occurred())
        Py_CLEAR(messages);
    Py_XDECREF(offsets);
    PyBuffer_Release(&buffer);
    return messages;
}
