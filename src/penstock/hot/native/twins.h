/*
 * What the compiled twins share: the fields of operations, slices of bytes, and the functions
 * that one file has for the others. Each `name.c` is the twin of `hot/name.py`, which is the
 * reference and says what a function means; `module.c` makes the module of them.
 *
 * Functions keep nothing between calls. Only the limited API is used, so one build serves every
 * Python from 3.11. Numbers and texts that both twins must agree on are exported by the module,
 * and the tests hold them to Python's.
 */

#ifndef PENSTOCK_TWINS_H
#define PENSTOCK_TWINS_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LENGTH(array) ((Py_ssize_t)(sizeof(array) / sizeof((array)[0])))

enum { PUB, SUB, UNSUB, CONNECT, PING, PONG, OK, FAIL, MSG, INFO, ERR };

/* The fields of a publish. */
enum { FIELD_KIND, FIELD_SUBJECT, FIELD_REPLY, FIELD_HEADER_BYTES, FIELD_SIZE, FIELD_DATA };

#define CRLF "\r\n"

/* Bounds, named as in the Python twins. */
#define SIZE_DIGITS_MAX 9
#define VERB_BYTES_MAX 7
#define DIGITS_MAX 20 /* of a number in 64 bits, with a sign */
#define NUMBER_DIGITS_MAX 19 /* of a number that is read */
#define SHARED_BYTES 512
#define WRITE_BYTES (1024 * 1024)
#define WRITE_BUFFERS 1024
#define RECORD_BYTES_MIN 30
#define RECORD_MARK 0x4E50
#define S2_POLYNOMIAL 0x82F63B78
#define S2_BLOCK_BYTES_MAX (4 * 1024 * 1024)

/* The failures of a parse. */
#define UNKNOWN_OPERATION "Unknown Protocol Operation"
#define PAYLOAD_VIOLATION "Maximum Payload Violation"
#define CONTROL_LINE_EXCEEDED "maximum control line exceeded"
#define MALFORMED ""

typedef struct {
    const char *start;
    Py_ssize_t size;
} Slice;

static const Slice EMPTY = {"", 0}, SPACE = {" ", 1};

/* What is left to read of a buffer. */
typedef struct {
    const char *position, *end;
} Cursor;

/* What stands before the sid in the control line of a delivery, or after it. */
typedef struct {
    Slice parts[3];
    Py_ssize_t size;
} HalfLine;

/* A publish as it is delivered. Its payloads lie a stride apart, the last one at `last`. */
typedef struct {
    HalfLine before, after;
    const char *data;
    Py_ssize_t stride, last;
    char digits[48];
} Publish;

/* A stored message. */
typedef struct {
    Slice subject, header, payload;
    int64_t sequence, time_ns;
} Stored;

/* The base of a session: what leaves to one peer. */
typedef struct {
    PyObject_HEAD
    PyObject *outbox, *dirty, *congested;
    Py_ssize_t outbox_bytes, out_messages, out_bytes, congested_bytes;
    char is_dirty, is_stuck;
} Outlet;

/* The base of a subscription: the outlet and the sid that a message goes to. */
typedef struct {
    PyObject_HEAD
    PyObject *session, *sid;
    Py_ssize_t delivered;
} Receiver;

/* The state of the module. */
typedef struct {
    PyTypeObject *outlet, *receiver;
    PyObject *ways; /* the name of the attribute */
} Types;

static inline PyObject *new_bytes(Slice slice) {
    return PyBytes_FromStringAndSize(slice.start, slice.size);
}

/* Make a tuple of new references, and take them over; a NULL is an error already raised. */
static inline PyObject *new_tuple(PyObject *const items[], Py_ssize_t count) {
    bool complete = true;
    for (Py_ssize_t i = 0; i < count; i++)
        complete = complete && items[i] != NULL;
    PyObject *tuple = complete ? PyTuple_New(count) : NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (tuple != NULL)
            PyTuple_SetItem(tuple, i, items[i]);
        else
            Py_XDECREF(items[i]);
    }
    return tuple;
}

/* An operation is its kind and its fields. */
#define NEW_OPERATION(kind, ...) NEW_TUPLE(PyLong_FromLong(kind), __VA_ARGS__)
#define NEW_TUPLE(...) new_tuple(ITEMS(__VA_ARGS__), LENGTH(ITEMS(__VA_ARGS__)))
#define ITEMS(...) ((PyObject *const[]){__VA_ARGS__})

/* Append a new reference, and take it over; a NULL is an error already raised. */
static inline bool append_new(PyObject *list, PyObject *item) {
    int error = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return error == 0;
}

/* Look into bytes, which must outlive `slice`; a NULL is an error already raised. */
static inline bool as_slice(PyObject *object, Slice *slice) {
    char *start;
    Py_ssize_t size;
    if (object == NULL || PyBytes_AsStringAndSize(object, &start, &size) < 0)
        return false;
    *slice = (Slice){start, size};
    return true;
}

static inline bool get_bytes(PyObject *tuple, Py_ssize_t index, Slice *slice) {
    return as_slice(PyTuple_GetItem(tuple, index), slice);
}

static inline bool get_number(PyObject *tuple, Py_ssize_t index, Py_ssize_t *number) {
    *number = PyNumber_AsSsize_t(PyTuple_GetItem(tuple, index), NULL);
    return *number != -1 || !PyErr_Occurred();
}

static inline bool is_publish(PyObject *object) {
    bool is_one = PyTuple_Check(object) && PyTuple_Size(object) == 6;
    if (!is_one)
        PyErr_SetString(PyExc_ValueError, "a publish is a tuple of 6");
    return is_one;
}

static inline char *put(char *target, Slice slice) {
    memcpy(target, slice.start, (size_t)slice.size);
    return target + slice.size;
}

static inline char *put_half_line(char *target, const HalfLine *half) {
    return put(put(put(target, half->parts[0]), half->parts[1]), half->parts[2]);
}

static inline bool take_literal(Cursor *cursor, const char *literal, Py_ssize_t size) {
    if (cursor->end - cursor->position < size ||
        memcmp(cursor->position, literal, (size_t)size) != 0)
        return false;
    cursor->position += size;
    return true;
}

/* Return the number, or -1 if it is not one. */
static inline Py_ssize_t read_number(Slice field) {
    Py_ssize_t number = 0;
    for (Py_ssize_t i = 0; i < field.size; i++) {
        if (i == SIZE_DIGITS_MAX || field.start[i] < '0' || field.start[i] > '9')
            return -1;
        number = number * 10 + (field.start[i] - '0');
    }
    return number;
}

static inline PyObject *new_buffer(Py_ssize_t size, void *start) {
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    *(char **)start = bytes != NULL ? PyBytes_AsString(bytes) : NULL;
    return bytes;
}

/* Return a little-endian number. Compilers make a single load of it. */
static inline uint64_t get_little(const char *start, int size) {
    uint64_t number = 0;
    for (int i = 0; i < size; i++)
        number |= (uint64_t)(unsigned char)start[i] << (8 * i);
    return number;
}

/* The functions that other files call. */
bool get_publish(PyObject *tuple, Publish *publish);
char *write_number(char *start, int64_t number);
PyObject *join_data(Slice header, Slice payload);
int64_t as_number(PyObject *object);
bool get_stored(PyObject *message, Stored *stored);
uint32_t checksum_of(Slice bytes, uint32_t salt);
void fill_checksum_tables(void);
void fill_s2_table(void);
int add_types(PyObject *module);
int traverse_types(PyObject *module, visitproc visit, void *arg);
int clear_types(PyObject *module);

/* The functions of the module. */
#define FASTCALL(name) PyObject *name(PyObject *module, PyObject *const arguments[], Py_ssize_t count)
#define FAST(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL

/* wire.c */
FASTCALL(parse_commands);
FASTCALL(parse_messages);
FASTCALL(publish_totals);
PyObject *message_pieces(PyObject *module, PyObject *argument);
/* deliveries.c */
FASTCALL(collect_deliveries);
/* consuming.c */
FASTCALL(have_prefix);
FASTCALL(plain_acks);
FASTCALL(first_deliveries);
FASTCALL(encode_deliveries);
/* answers.c */
FASTCALL(are_siblings);
FASTCALL(numbered_answers);
FASTCALL(stored_answer);
/* records.c */
FASTCALL(plain_entries);
FASTCALL(encode_records);
FASTCALL(decode_messages);
/* s2.c */
PyObject *crc32c(PyObject *module, PyObject *argument);
PyObject *decode_s2(PyObject *module, PyObject *argument);
/* fanout.c */
FASTCALL(fan_out);
FASTCALL(fan_out_each);
/* outbox.c */
FASTCALL(write_outbox);

#endif
