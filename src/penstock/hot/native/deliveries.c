/*
 * The compiled twin of deliveries.py, which is the reference.
 *
 * The first pass walks the buffer and notes where the parts of each row lie; then the columns
 * are made in their final size and filled.
 */

#include "twins.h"

#include <stdlib.h>

enum { SUBJECTS = 1, DATA = 2, HEADERS = 4 };

#define REPLY_TOKENS_MAX 10
#define ROWS_AT_FIRST 1024

typedef struct {
    Slice subject, block, data;
    int64_t sequence, consumer_sequence, time, pending;
} Row;

typedef struct {
    Row *rows;
    Py_ssize_t count, capacity;
} Rows;

static bool is_printing(char byte) {
    unsigned char code = (unsigned char)byte;
    return code > ' ' && code != 0x7f;
}

/* Take a field and the space behind it. */
static bool take_field(Cursor *cursor, Slice *field) {
    const char *byte = cursor->position;
    while (byte < cursor->end && is_printing(*byte))
        byte++;
    *field = (Slice){cursor->position, byte - cursor->position};
    cursor->position = byte;
    return field->size > 0 && take_literal(cursor, " ", 1);
}

/* Return a number that fits 64 bits with sign, or -1. */
static int64_t read_long_number(Slice field) {
    uint64_t number = 0;
    if (field.size == 0 || field.size > NUMBER_DIGITS_MAX)
        return -1;
    for (Py_ssize_t i = 0; i < field.size; i++) {
        if (field.start[i] < '0' || field.start[i] > '9')
            return -1;
        number = number * 10 + (uint64_t)(field.start[i] - '0');
    }
    return number <= INT64_MAX ? (int64_t)number : -1;
}

/* As read_long_number, but the number itself may be any: only its digits count. */
static bool is_number(Slice field) {
    for (Py_ssize_t i = 0; i < field.size; i++)
        if (field.start[i] < '0' || field.start[i] > '9')
            return false;
    return field.size > 0 && field.size <= NUMBER_DIGITS_MAX;
}

/* Read `[domain.account.]stream.consumer.deliveries.sequence.consumer sequence.time.pending`. */
static bool read_ack_subject(Slice reply, Row *row) {
    Slice tokens[REPLY_TOKENS_MAX];
    const char *end = reply.start + reply.size, *token = reply.start;
    int count = 0;
    for (const char *byte = token; byte <= end; byte++) {
        if (byte < end && *byte != '.')
            continue;
        if (byte == token || count == REPLY_TOKENS_MAX)
            return false;
        tokens[count++] = (Slice){token, byte - token};
        token = byte + 1;
    }
    if (count < 7)
        return false;
    const Slice *numbers = tokens + (count < 9 ? 2 : 4);
    row->sequence = read_long_number(numbers[1]);
    row->consumer_sequence = read_long_number(numbers[2]);
    int64_t time_ns = read_long_number(numbers[3]);
    row->time = time_ns / 1000;
    row->pending = read_long_number(numbers[4]);
    return is_number(numbers[0]) && row->sequence >= 0 && row->consumer_sequence >= 0 &&
           time_ns >= 0 && row->pending >= 0;
}

/* Take one whole delivery, or leave the cursor wherever and return false. */
static bool take_delivery(Cursor *cursor, Row *row) {
    Slice sid, reply, header_bytes = {"0", 1}, size = EMPTY;
    bool has_headers = take_literal(cursor, "H", 1);
    if (!take_literal(cursor, "MSG ", 4) || !take_field(cursor, &row->subject) ||
        !take_field(cursor, &sid) || !take_literal(cursor, "$JS.ACK.", 8) ||
        !take_field(cursor, &reply) || (has_headers && !take_field(cursor, &header_bytes)))
        return false;
    size.start = cursor->position;
    while (cursor->position < cursor->end && *cursor->position >= '0' && *cursor->position <= '9')
        cursor->position++;
    size.size = cursor->position - size.start;
    Py_ssize_t head = header_bytes.size > 0 ? read_number(header_bytes) : -1;
    Py_ssize_t total = size.size > 0 ? read_number(size) : -1;
    if (!take_literal(cursor, CRLF, 2) || head < 0 || total < head ||
        cursor->end - cursor->position < total + 2)
        return false;
    row->block = (Slice){cursor->position, head};
    row->data = (Slice){cursor->position + head, total - head};
    cursor->position += total;
    return take_literal(cursor, CRLF, 2) && read_ack_subject(reply, row);
}

static bool add_row(Rows *rows, const Row *row) {
    if (rows->count == rows->capacity) {
        Py_ssize_t capacity = rows->capacity > 0 ? 2 * rows->capacity : ROWS_AT_FIRST;
        Row *grown = realloc(rows->rows, (size_t)capacity * sizeof(Row));
        if (grown == NULL) {
            PyErr_NoMemory();
            return false;
        }
        rows->rows = grown;
        rows->capacity = capacity;
    }
    rows->rows[rows->count++] = *row;
    return true;
}

/* Gather rows until something else comes; return how much they take, or -1 with an error. */
static Py_ssize_t gather(Slice buffer, int64_t consumer_sequence, int64_t sequence_max, Rows *rows) {
    Cursor cursor = {buffer.start, buffer.start + buffer.size};
    const char *consumed = buffer.start;
    Row row;
    while (take_delivery(&cursor, &row) && row.sequence <= sequence_max &&
           row.consumer_sequence - rows->count == consumer_sequence) {
        if (!add_row(rows, &row))
            return -1;
        consumed = cursor.position;
    }
    return consumed - buffer.start;
}

/* A column in the making: its bytes, and the offset at which each row begins. */
typedef struct {
    PyObject *offsets, *bytes;
    int32_t *offset;
    char *start, *byte;
} Column;

static bool begin_column(Column *column, Py_ssize_t count, Py_ssize_t size) {
    column->offsets = new_buffer((count + 1) * (Py_ssize_t)sizeof(int32_t), &column->offset);
    column->bytes = new_buffer(size, &column->start);
    column->byte = column->start;
    if (column->offsets == NULL || column->bytes == NULL)
        return false;
    *column->offset++ = 0;
    return true;
}

static void add_to_column(Column *column, Slice slice) {
    column->byte = put(column->byte, slice);
    *column->offset++ = (int32_t)(column->byte - column->start);
}

static bool is_stripped(char byte) {
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static Slice strip(Slice text) {
    for (; text.size > 0 && is_stripped(text.start[0]); text.size--)
        text.start++;
    while (text.size > 0 && is_stripped(text.start[text.size - 1]))
        text.size--;
    return text;
}

/* Take the next line of a header block, without its CRLF; `rest` is NULL when there is none. */
static bool take_line(Slice *rest, Slice *line) {
    if (rest->start == NULL)
        return false;
    *line = *rest;
    const char *end = rest->start + rest->size;
    for (const char *byte = rest->start; byte + 1 < end; byte++) {
        if (byte[0] == '\r' && byte[1] == '\n') {
            line->size = byte - rest->start;
            *rest = (Slice){byte + 2, end - byte - 2};
            return true;
        }
    }
    rest->start = NULL;
    return true;
}

/* Take the next header of what is left of a block. */
static bool take_header(Slice *rest, Slice *key, Slice *value) {
    Slice line;
    while (take_line(rest, &line)) {
        const char *colon = line.size > 0 ? memchr(line.start, ':', (size_t)line.size) : NULL;
        if (colon == NULL)
            continue;
        *key = (Slice){line.start, colon - line.start};
        *value = strip((Slice){colon + 1, line.start + line.size - colon - 1});
        return true;
    }
    return false;
}

/* Return what follows the first line of a block, which says the version. */
static Slice header_lines(Slice block) {
    Slice version, rest = block;
    if (block.size == 0 || !take_line(&rest, &version))
        rest.start = NULL;
    return rest;
}

typedef struct {
    PyObject *offsets;
    Column keys, values;
} HeaderColumns;

static bool make_headers(const Rows *rows, HeaderColumns *columns) {
    Py_ssize_t count = 0, key_bytes = 0, value_bytes = 0;
    Slice key, value;
    for (Py_ssize_t i = 0; i < rows->count; i++) {
        Slice rest = header_lines(rows->rows[i].block);
        for (; take_header(&rest, &key, &value); count++) {
            key_bytes += key.size;
            value_bytes += value.size;
        }
    }
    int32_t *offset;
    columns->offsets = new_buffer((rows->count + 1) * (Py_ssize_t)sizeof(int32_t), &offset);
    if (columns->offsets == NULL || !begin_column(&columns->keys, count, key_bytes) ||
        !begin_column(&columns->values, count, value_bytes))
        return false;
    int32_t headers = 0;
    *offset++ = headers;
    for (Py_ssize_t i = 0; i < rows->count; i++) {
        Slice rest = header_lines(rows->rows[i].block);
        for (; take_header(&rest, &key, &value); headers++) {
            add_to_column(&columns->keys, key);
            add_to_column(&columns->values, value);
        }
        *offset++ = headers;
    }
    return true;
}

/* Make the column of the subjects, or of the data. */
static bool make_column(const Rows *rows, bool is_data, Column *column) {
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < rows->count; i++)
        size += is_data ? rows->rows[i].data.size : rows->rows[i].subject.size;
    if (!begin_column(column, rows->count, size))
        return false;
    for (Py_ssize_t i = 0; i < rows->count; i++)
        add_to_column(column, is_data ? rows->rows[i].data : rows->rows[i].subject);
    return true;
}

static PyObject *new_numbers(const Rows *rows, bool is_time) {
    int64_t *number;
    PyObject *bytes = new_buffer(rows->count * (Py_ssize_t)sizeof(int64_t), &number);
    for (Py_ssize_t i = 0; bytes != NULL && i < rows->count; i++) {
        int64_t value = is_time ? rows->rows[i].time : rows->rows[i].sequence;
        memcpy(&number[i], &value, sizeof(value));
    }
    return bytes;
}

/* Give up a reference to what was made, or to an empty column for what was not wanted. */
static PyObject *hand_over(PyObject **made, bool is_wanted) {
    PyObject *bytes = is_wanted ? *made : new_bytes(EMPTY);
    if (is_wanted)
        *made = NULL;
    return bytes;
}

static PyObject *new_columns(const Rows *rows, Py_ssize_t consumed, long wanted) {
    Column subjects = {0}, data = {0};
    HeaderColumns headers = {0};
    bool has_subjects = wanted & SUBJECTS, has_data = wanted & DATA, has_headers = wanted & HEADERS;
    PyObject *result = NULL;
    if ((!has_subjects || make_column(rows, false, &subjects)) &&
        (!has_data || make_column(rows, true, &data)) &&
        (!has_headers || make_headers(rows, &headers)))
        result = NEW_TUPLE(
            PyLong_FromSsize_t(rows->count), PyLong_FromSsize_t(consumed),
            PyLong_FromLongLong(rows->count > 0 ? rows->rows[rows->count - 1].pending : 0),
            new_numbers(rows, false), new_numbers(rows, true),
            hand_over(&subjects.offsets, has_subjects), hand_over(&subjects.bytes, has_subjects),
            hand_over(&data.offsets, has_data), hand_over(&data.bytes, has_data),
            hand_over(&headers.offsets, has_headers),
            hand_over(&headers.keys.offsets, has_headers),
            hand_over(&headers.keys.bytes, has_headers),
            hand_over(&headers.values.offsets, has_headers),
            hand_over(&headers.values.bytes, has_headers));
    PyObject *left[] = {subjects.offsets,     subjects.bytes,         data.offsets,
                        data.bytes,           headers.offsets,        headers.keys.offsets,
                        headers.keys.bytes,   headers.values.offsets, headers.values.bytes};
    for (Py_ssize_t i = 0; i < LENGTH(left); i++)
        Py_XDECREF(left[i]);
    return result;
}

PyObject *collect_deliveries(PyObject *module, PyObject *const arguments[],
                                    Py_ssize_t count) {
    (void)module;
    Py_buffer buffer;
    if (count != 4) {
        PyErr_Format(PyExc_TypeError, "expected 4 arguments, got %zd", count);
        return NULL;
    }
    long wanted = PyLong_AsLong(arguments[1]);
    int64_t consumer_sequence = PyLong_AsLongLong(arguments[2]);
    int64_t sequence_max = PyLong_AsLongLong(arguments[3]);
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[0], &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    Rows rows = {0};
    PyObject *result = NULL;
    Py_ssize_t consumed =
        gather((Slice){buffer.buf, buffer.len}, consumer_sequence, sequence_max, &rows);
    if (consumed >= 0)
        result = new_columns(&rows, consumed, wanted);
    free(rows.rows);
    PyBuffer_Release(&buffer);
    return result;
}
