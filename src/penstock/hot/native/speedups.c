/*
 * The compiled twin of four functions of wire.py: parse_commands, parse_messages,
 * publish_totals and message_pieces. wire.py is the reference and says what they mean; the tests
 * hold this file to equal results for every input. deliveries.h does the same for
 * deliveries.py, consuming.h for consuming.py, answers.h for answers.py, records.h for
 * records.py with checksum.h, s2.h for s2.py, fanout.h for fanout.py and outbox.h for
 * outbox.py.
 *
 * Functions keep nothing between calls. A parse is one Scan on the stack, which walks the
 * buffer line by line; every operation is a new tuple that owns copies of its
 * bytes. Only the limited API is used, so one build serves every Python from 3.11.
 */

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <string.h>

#define LENGTH(array) ((Py_ssize_t)(sizeof(array) / sizeof((array)[0])))

enum { PUB, SUB, UNSUB, CONNECT, PING, PONG, OK, FAIL, MSG, INFO, ERR };

/* The fields of a publish. */
enum { FIELD_KIND, FIELD_SUBJECT, FIELD_REPLY, FIELD_HEADER_BYTES, FIELD_SIZE, FIELD_DATA };

#define CRLF "\r\n"
#define SIZE_DIGITS_MAX 9
#define VERB_BYTES_MAX 7
#define FIELDS_MAX 5 /* HMSG subject sid reply header_bytes size */

static const char UNKNOWN_OPERATION[] = "Unknown Protocol Operation";
static const char PAYLOAD_VIOLATION[] = "Maximum Payload Violation";
static const char CONTROL_LINE_EXCEEDED[] = "maximum control line exceeded";
static const char MALFORMED[] = "";

/* A line before a payload has so many names, perhaps a reply, and so many numbers. */
typedef struct {
    const char *name;
    Py_ssize_t size;
    int kind, names, numbers;
    bool is_loose; /* takes whatever follows, without a space before it */
} Verb;

static const Verb COMMANDS[] = {
    {"PUB", 3, PUB, 1, 1, false},  {"HPUB", 4, PUB, 1, 2, false},
    {"SUB", 3, SUB, 0, 0, false},  {"UNSUB", 5, UNSUB, 0, 0, false},
    {"INFO", 4, INFO, 0, 0, true}, {"CONNECT", 7, CONNECT, 0, 0, true},
    {"PING", 4, PING, 0, 0, true}, {"-ERR", 4, FAIL, 0, 0, false},
    {"PONG", 4, PONG, 0, 0, true}, {"+OK", 3, OK, 0, 0, true},
};

static const Verb MESSAGES[] = {
    {"MSG", 3, MSG, 2, 1, false},  {"HMSG", 4, MSG, 2, 2, false}, {"INFO", 4, INFO, 0, 0, true},
    {"-ERR", 4, ERR, 0, 0, false}, {"PING", 4, PING, 0, 0, true}, {"PONG", 4, PONG, 0, 0, true},
    {"+OK", 3, OK, 0, 0, true},
};

typedef struct {
    const char *start;
    Py_ssize_t size;
} Slice;

static const Slice EMPTY = {"", 0}, SPACE = {" ", 1};

/* One walk over one buffer. The operation at hand is from `position` up to `next`. */
typedef struct {
    const Verb *verbs;
    Py_ssize_t verbs_count, payload_bytes_max, control_line_bytes_max;
    const char *position, *next, *end;
    Py_ssize_t needed;
    const char *failure;
    PyObject *subject; /* of the last publish, which the list of operations keeps alive */
} Scan;

/* What the line before a payload says. */
typedef struct {
    Slice fields[FIELDS_MAX];
    Slice reply;
    Py_ssize_t header_bytes, size;
} Announcement;

static PyObject *new_bytes(Slice slice) {
    return PyBytes_FromStringAndSize(slice.start, slice.size);
}

/* Make a tuple of new references, and take them over; a NULL is an error already raised. */
static PyObject *new_tuple(PyObject *const items[], Py_ssize_t count) {
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
static bool append_new(PyObject *list, PyObject *item) {
    int error = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return error == 0;
}

/* Refuse the peer: the operation at hand becomes a FAIL, and is the last. */
static void *fail(Scan *scan, const char *text) {
    scan->failure = text;
    return NULL;
}

static bool is_white_space(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\r';
}

static const char *skip(const char *byte, const char *end, bool white_space) {
    while (byte < end && is_white_space(*byte) == white_space)
        byte++;
    return byte;
}

static bool starts_with(const char *bytes, const char *capitals, Py_ssize_t size) {
    for (Py_ssize_t i = 0; i < size; i++) {
        bool is_small = bytes[i] >= 'a' && bytes[i] <= 'z';
        if ((is_small ? bytes[i] - 'a' + 'A' : bytes[i]) != capitals[i])
            return false;
    }
    return true;
}

/* Refuse a line that can no longer become valid, so that garbage is not waited on. */
static void *check_incomplete(Scan *scan) {
    Py_ssize_t size = scan->end - scan->position;
    bool is_possible = false;
    for (Py_ssize_t i = 0; i < scan->verbs_count && !is_possible; i++) {
        const Verb *verb = &scan->verbs[i];
        Py_ssize_t known = size < verb->size ? size : verb->size;
        is_possible = starts_with(scan->position, verb->name, known);
    }
    if (!is_possible)
        return fail(scan, UNKNOWN_OPERATION);
    if (size - VERB_BYTES_MAX - 1 > scan->control_line_bytes_max)
        return fail(scan, CONTROL_LINE_EXCEEDED);
    return NULL;
}

/* Return the verb of a line, and the rest of the line in `arguments`. */
static const Verb *split_line(Scan *scan, const char *line_end, Slice *arguments) {
    if (line_end > scan->position && line_end[-1] == '\r')
        line_end--;
    for (Py_ssize_t i = 0; i < scan->verbs_count; i++) {
        const Verb *verb = &scan->verbs[i];
        const char *verb_end = scan->position + verb->size;
        if (verb->size > line_end - scan->position ||
            !starts_with(scan->position, verb->name, verb->size))
            continue;
        const char *start = verb_end;
        while (start < line_end && (*start == ' ' || *start == '\t'))
            start++;
        if (start == verb_end && !verb->is_loose)
            break;
        *arguments = (Slice){start, line_end - start};
        if (arguments->size > scan->control_line_bytes_max)
            return fail(scan, CONTROL_LINE_EXCEEDED);
        return verb;
    }
    return fail(scan, UNKNOWN_OPERATION);
}

/* Split arguments of which one is optional. Return how many there are; 0 is a failure. */
static int split_fields(Scan *scan, Slice arguments, int fewest, Slice fields[FIELDS_MAX]) {
    const char *end = arguments.start + arguments.size;
    const char *field = skip(arguments.start, end, true);
    int count = 0;
    for (; field < end && count <= fewest; count++) {
        const char *field_end = skip(field, end, false);
        fields[count] = (Slice){field, field_end - field};
        field = skip(field_end, end, true);
    }
    if (count < fewest || field < end) {
        fail(scan, MALFORMED);
        return 0;
    }
    return count;
}

/* Return the number, or -1 for what is none. */
static Py_ssize_t read_number(Slice field) {
    Py_ssize_t number = 0;
    for (Py_ssize_t i = 0; i < field.size; i++) {
        if (i == SIZE_DIGITS_MAX || field.start[i] < '0' || field.start[i] > '9')
            return -1;
        number = number * 10 + (field.start[i] - '0');
    }
    return number;
}

/* Read the line before a payload, and see that the payload is here: `next` is its end. */
static bool read_announcement(Scan *scan, const Verb *verb, Slice arguments, Announcement *line) {
    int fewest = verb->names + verb->numbers;
    int count = split_fields(scan, arguments, fewest, line->fields);
    if (count == 0)
        return false;
    line->reply = count > fewest ? line->fields[verb->names] : EMPTY;
    line->size = read_number(line->fields[count - 1]);
    line->header_bytes = verb->numbers == 2 ? read_number(line->fields[count - 2]) : 0;
    if (line->header_bytes < 0 || line->header_bytes > line->size)
        return fail(scan, MALFORMED);
    if (line->size > scan->payload_bytes_max)
        return fail(scan, PAYLOAD_VIOLATION);
    Py_ssize_t here = scan->end - scan->next;
    if (here < line->size + 2) {
        scan->needed = scan->next - scan->position + line->size + 2;
        return false;
    }
    scan->next += line->size + 2;
    if (memcmp(scan->next - 2, CRLF, 2) != 0)
        return fail(scan, UNKNOWN_OPERATION);
    return true;
}

/* Move `next` to the end of the run of whole messages with this same control line. */
static void find_run_end(Scan *scan, size_t line_size, Py_ssize_t stride) {
    while (scan->end - scan->next >= stride &&
           memcmp(scan->next, scan->position, line_size) == 0 &&
           memcmp(scan->next + stride - 2, CRLF, 2) == 0)
        scan->next += stride;
}

/* Gather payloads, each with its CRLF, that lie a stride apart. */
static PyObject *new_data(Slice payload, Py_ssize_t stride, Py_ssize_t count) {
    PyObject *data = PyBytes_FromStringAndSize(NULL, count * payload.size);
    if (data == NULL)
        return NULL;
    char *target = PyBytes_AsString(data);
    for (Py_ssize_t i = 0; i < count; i++)
        memcpy(target + i * payload.size, payload.start + i * stride, (size_t)payload.size);
    return data;
}

/* Return the subject: the very object of the publish before, where it is the same once more. */
static PyObject *new_subject(Scan *scan, Slice name) {
    char *start;
    Py_ssize_t size;
    if (scan->subject != NULL && PyBytes_AsStringAndSize(scan->subject, &start, &size) == 0 &&
        size == name.size && memcmp(start, name.start, (size_t)size) == 0)
        Py_INCREF(scan->subject);
    else
        scan->subject = new_bytes(name);
    return scan->subject;
}

static PyObject *read_publish(Scan *scan, const Verb *verb, Slice arguments) {
    Announcement line;
    const char *payload = scan->next;
    if (!read_announcement(scan, verb, arguments, &line))
        return NULL;
    Py_ssize_t stride = scan->next - scan->position;
    find_run_end(scan, (size_t)(payload - scan->position), stride);
    Py_ssize_t count = (scan->next - scan->position) / stride;
    return NEW_OPERATION(PUB, new_subject(scan, line.fields[0]), new_bytes(line.reply),
                         PyLong_FromSsize_t(line.header_bytes), PyLong_FromSsize_t(line.size),
                         new_data((Slice){payload, line.size + 2}, stride, count));
}

static PyObject *read_message(Scan *scan, const Verb *verb, Slice arguments) {
    Announcement line;
    const char *payload = scan->next;
    if (!read_announcement(scan, verb, arguments, &line))
        return NULL;
    return NEW_OPERATION(MSG, new_bytes(line.fields[0]), new_bytes(line.fields[1]),
                         new_bytes(line.reply), PyLong_FromSsize_t(line.header_bytes),
                         PyBytes_FromStringAndSize(payload, line.size));
}

static PyObject *read_subscribe(Scan *scan, Slice arguments) {
    Slice fields[FIELDS_MAX];
    int count = split_fields(scan, arguments, 2, fields);
    if (count == 0)
        return NULL;
    Slice queue = count == 3 ? fields[1] : EMPTY;
    return NEW_OPERATION(SUB, new_bytes(fields[0]), new_bytes(queue), new_bytes(fields[count - 1]));
}

/* A number that is none means at once, as it does to nats-server. */
static PyObject *read_unsubscribe(Scan *scan, Slice arguments) {
    Slice fields[FIELDS_MAX];
    int count = split_fields(scan, arguments, 1, fields);
    if (count == 0)
        return NULL;
    Py_ssize_t max_messages = count == 2 ? read_number(fields[1]) : 0;
    return NEW_OPERATION(UNSUB, new_bytes(fields[0]),
                         PyLong_FromSsize_t(max_messages > 0 ? max_messages : 0));
}

static Slice strip_quotes(Slice text) {
    for (; text.size > 0 && text.start[0] == '\''; text.size--)
        text.start++;
    while (text.size > 0 && text.start[text.size - 1] == '\'')
        text.size--;
    return text;
}

/* Return NULL for a failure, for a Python error, and where the rest has yet to arrive. */
static PyObject *read_operation(Scan *scan) {
    const char *line_end = memchr(scan->position, '\n', (size_t)(scan->end - scan->position));
    if (line_end == NULL)
        return check_incomplete(scan);
    scan->next = line_end + 1;
    Slice arguments;
    const Verb *verb = split_line(scan, line_end, &arguments);
    if (verb == NULL)
        return NULL;
    switch (verb->kind) {
    case PUB:
        return read_publish(scan, verb, arguments);
    case MSG:
        return read_message(scan, verb, arguments);
    case SUB:
        return read_subscribe(scan, arguments);
    case UNSUB:
        return read_unsubscribe(scan, arguments);
    case CONNECT:
    case INFO:
        return NEW_OPERATION(verb->kind, new_bytes(arguments));
    case FAIL:
        return fail(scan, MALFORMED);
    case ERR:
        return NEW_OPERATION(ERR, new_bytes(strip_quotes(arguments)));
    default:
        return NEW_TUPLE(PyLong_FromLong(verb->kind));
    }
}

/* Append every operation of the buffer; false is a Python error. */
static bool read_operations(Scan *scan, PyObject *operations) {
    while (scan->position < scan->end) {
        PyObject *operation = read_operation(scan);
        if (operation == NULL)
            break;
        if (!append_new(operations, operation))
            return false;
        scan->position = scan->next;
    }
    if (scan->failure != NULL)
        return append_new(operations, NEW_OPERATION(FAIL, PyBytes_FromString(scan->failure)));
    return PyErr_Occurred() == NULL;
}

static PyObject *parse(PyObject *const arguments[], Py_ssize_t count, Scan scan) {
    Py_buffer buffer;
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "expected 3 arguments, got %zd", count);
        return NULL;
    }
    /* NULL: a limit too large for C is clamped, and is as good as none. */
    scan.payload_bytes_max = PyNumber_AsSsize_t(arguments[1], NULL);
    scan.control_line_bytes_max = PyNumber_AsSsize_t(arguments[2], NULL);
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[0], &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    scan.position = buffer.buf;
    scan.end = scan.position + buffer.len;
    PyObject *operations = PyList_New(0);
    if (operations != NULL && !read_operations(&scan, operations))
        Py_CLEAR(operations);
    Py_ssize_t consumed = buffer.len - (scan.end - scan.position);
    PyBuffer_Release(&buffer);
    if (operations == NULL)
        return NULL;
    return NEW_TUPLE(operations, PyLong_FromSsize_t(consumed), PyLong_FromSsize_t(scan.needed));
}

static PyObject *parse_commands(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    (void)module;
    return parse(arguments, count, (Scan){.verbs = COMMANDS, .verbs_count = LENGTH(COMMANDS)});
}

static PyObject *parse_messages(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    (void)module;
    return parse(arguments, count, (Scan){.verbs = MESSAGES, .verbs_count = LENGTH(MESSAGES)});
}

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

static HalfLine half_line(Slice first, Slice second, Slice third) {
    return (HalfLine){{first, second, third}, first.size + second.size + third.size};
}

static char *put(char *target, Slice slice) {
    memcpy(target, slice.start, (size_t)slice.size);
    return target + slice.size;
}

static char *put_half_line(char *target, const HalfLine *half) {
    return put(put(put(target, half->parts[0]), half->parts[1]), half->parts[2]);
}

/* Write right to left, as digits come, with a space in front; return where it starts. */
static char *put_number(char *end, Py_ssize_t number) {
    do
        *--end = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    *--end = ' ';
    return end;
}

/* Look into bytes, which must outlive `slice`; a NULL is an error already raised. */
static bool as_slice(PyObject *object, Slice *slice) {
    char *start;
    Py_ssize_t size;
    if (object == NULL || PyBytes_AsStringAndSize(object, &start, &size) < 0)
        return false;
    *slice = (Slice){start, size};
    return true;
}

static bool get_bytes(PyObject *tuple, Py_ssize_t index, Slice *slice) {
    return as_slice(PyTuple_GetItem(tuple, index), slice);
}

static bool get_number(PyObject *tuple, Py_ssize_t index, Py_ssize_t *number) {
    *number = PyNumber_AsSsize_t(PyTuple_GetItem(tuple, index), NULL);
    return *number != -1 || !PyErr_Occurred();
}

static bool is_publish(PyObject *object) {
    bool is_one = PyTuple_Check(object) && PyTuple_Size(object) == 6;
    if (!is_one)
        PyErr_SetString(PyExc_ValueError, "a publish is a tuple of 6");
    return is_one;
}

/* Look into the tuple of a publish, which must outlive `publish`. */
static bool get_publish(PyObject *tuple, Publish *publish) {
    Slice subject, reply, data;
    Py_ssize_t header_bytes, size;
    if (!is_publish(tuple) || !get_bytes(tuple, FIELD_SUBJECT, &subject) || !get_bytes(tuple, FIELD_REPLY, &reply) ||
        !get_number(tuple, FIELD_HEADER_BYTES, &header_bytes) || !get_number(tuple, FIELD_SIZE, &size) ||
        !get_bytes(tuple, FIELD_DATA, &data))
        return false;
    if (header_bytes < 0 || header_bytes > size || size > data.size - 2) {
        PyErr_SetString(PyExc_ValueError, "the sizes of a publish do not fit its data");
        return false;
    }
    char *end = publish->digits + sizeof(publish->digits);
    char *start = put_number(memcpy(end - 2, CRLF, 2), size);
    if (header_bytes > 0)
        start = put_number(start, header_bytes);
    Slice verb = header_bytes > 0 ? (Slice){"HMSG ", 5} : (Slice){"MSG ", 4};
    publish->before = half_line(verb, subject, SPACE);
    publish->after = half_line(reply.size > 0 ? SPACE : EMPTY, reply, (Slice){start, end - start});
    publish->data = data.start;
    publish->stride = size + 2;
    publish->last = data.size - publish->stride;
    return true;
}

/*
 * Make what stands between two sids: the end of a delivery of `behind`, whose payload
 * is at `offset`, and the start of one of `ahead`. Either may be missing.
 */
static PyObject *new_piece(const Publish *behind, Py_ssize_t offset, const Publish *ahead) {
    Py_ssize_t behind_size = behind != NULL ? behind->after.size + behind->stride : 0;
    Py_ssize_t ahead_size = ahead != NULL ? ahead->before.size : 0;
    PyObject *piece = PyBytes_FromStringAndSize(NULL, behind_size + ahead_size);
    if (piece == NULL)
        return NULL;
    char *target = PyBytes_AsString(piece);
    if (behind != NULL) {
        target = put_half_line(target, &behind->after);
        target = put(target, (Slice){behind->data + offset, behind->stride});
    }
    if (ahead != NULL)
        put_half_line(target, &ahead->before);
    return piece;
}

static bool append_pieces(PyObject *pieces, PyObject *publishes) {
    Publish two[2];
    const Publish *behind = NULL;
    Py_ssize_t last = 0, count = PyTuple_Size(publishes);
    for (Py_ssize_t i = 0; i < count; i++) {
        Publish *publish = &two[i % 2];
        if (!get_publish(PyTuple_GetItem(publishes, i), publish) ||
            !append_new(pieces, new_piece(behind, last, publish)))
            return false;
        for (Py_ssize_t offset = 0; offset < publish->last; offset += publish->stride)
            if (!append_new(pieces, new_piece(publish, offset, publish)))
                return false;
        behind = publish;
        last = publish->last;
    }
    return append_new(pieces, new_piece(behind, last, NULL));
}

/* Tell whether bytes start with one of those in a tuple; -1 after an error. */
static int starts_with_any(Slice bytes, PyObject *prefixes) {
    Slice prefix;
    for (Py_ssize_t i = 0; bytes.size > 0 && i < PyTuple_Size(prefixes); i++) {
        if (!get_bytes(prefixes, i, &prefix))
            return -1;
        if (prefix.size <= bytes.size && memcmp(bytes.start, prefix.start, (size_t)prefix.size) == 0)
            return 1;
    }
    return 0;
}

/* Tell whether some line of a header says where the trace of its message goes. */
static bool names_trace(const char *header, Py_ssize_t size) {
    static const char line[] = "\nNats-Trace-Dest:";
    const Py_ssize_t length = sizeof line - 1;
    const char *end = header + size;
    const char *found;
    while (end - header >= length &&
           (found = memchr(header, '\n', (size_t)(end - header - length + 1))) != NULL) {
        if (memcmp(found, line, (size_t)length) == 0)
            return true;
        header = found + 1;
    }
    return false;
}

/* Tell whether any message of a run asks to be traced. */
static bool is_traced(Slice data, Py_ssize_t header_bytes, Py_ssize_t size) {
    for (Py_ssize_t offset = 0; offset + size + 2 <= data.size; offset += size + 2)
        if (names_trace(data.start + offset, header_bytes))
            return true;
    return false;
}

static PyObject *publish_totals(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    (void)module;
    Py_ssize_t messages = 0, payload_bytes = 0;
    int is_special = 0;
    Slice reply, data;
    if (count != 2 || !PyList_Check(arguments[0]) || !PyTuple_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "expected a list of publishes and a tuple of prefixes");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_Size(arguments[0]); i++) {
        PyObject *publish = PyList_GetItem(arguments[0], i);
        Py_ssize_t header_bytes, size;
        if (!get_bytes(publish, FIELD_REPLY, &reply) || !get_number(publish, FIELD_HEADER_BYTES, &header_bytes) ||
            !get_number(publish, FIELD_SIZE, &size) || !get_bytes(publish, FIELD_DATA, &data))
            return NULL;
        if (size < 0 || header_bytes < 0 || header_bytes > size) {
            PyErr_SetString(PyExc_ValueError, "the sizes of a publish do not fit its data");
            return NULL;
        }
        Py_ssize_t run = data.size / (size + 2);
        messages += run;
        payload_bytes += data.size - 2 * run;
        if (!is_special && (is_special = starts_with_any(reply, arguments[1])) < 0)
            return NULL;
        if (header_bytes > 0 && !is_special)
            is_special = is_traced(data, header_bytes, size);
    }
    return NEW_TUPLE(PyLong_FromSsize_t(messages), PyLong_FromSsize_t(payload_bytes),
                     PyBool_FromLong(is_special));
}

static PyObject *message_pieces(PyObject *module, PyObject *argument) {
    (void)module;
    /* A tuple of its own keeps every publish alive, whatever becomes of the list. */
    PyObject *publishes = PySequence_Tuple(argument);
    PyObject *pieces = publishes != NULL ? PyList_New(0) : NULL;
    if (pieces != NULL && !append_pieces(pieces, publishes))
        Py_CLEAR(pieces);
    Py_XDECREF(publishes);
    return pieces;
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL

#include "deliveries.h"
#include "consuming.h"
#include "answers.h"
#include "checksum.h"
#include "records.h"
#include "s2.h"
#include "fanout.h"
#include "outbox.h"

static PyMethodDef methods[] = {
    {"parse_commands", FAST(parse_commands), "Parse what a client sent to a server."},
    {"parse_messages", FAST(parse_messages), "Parse what a server sent to a client."},
    {"publish_totals", FAST(publish_totals), "Return what publishes hold in all."},
    {"message_pieces", message_pieces, METH_O, "Encode publishes, with the sid left out."},
    {"collect_deliveries", FAST(collect_deliveries), "Gather JetStream deliveries as columns."},
    {"have_prefix", FAST(have_prefix), "Tell whether all subjects start alike."},
    {"plain_acks", FAST(plain_acks), "Return the sequences of plain acks."},
    {"are_siblings", FAST(are_siblings), "Tell whether subjects have one parent."},
    {"numbered_answers", FAST(numbered_answers), "Encode answers that differ in a number."},
    {"stored_answer", FAST(stored_answer), "Return a stored message as an answer."},
    {"first_deliveries", FAST(first_deliveries), "Return messages as they are delivered."},
    {"encode_deliveries", FAST(encode_deliveries), "Encode messages for one subscriber."},
    {"plain_entries", FAST(plain_entries), "Return publishes as messages to append."},
    {"encode_records", FAST(encode_records), "Return the records of messages."},
    {"decode_messages", FAST(decode_messages), "Return the messages of records."},
    {"crc32c", crc32c, METH_O, "Return the CRC-32C of some bytes."},
    {"decode_s2", decode_s2, METH_O, "Return what a block of S2 stands for."},
    {"fan_out", FAST(fan_out), "Deliver one message to its receivers."},
    {"fan_out_each", FAST(fan_out_each), "Deliver messages that go one by one."},
    {"write_outbox", FAST(write_outbox), "Write an outbox as far as the kernel takes it."},
    {NULL, NULL, 0, NULL},
};

/* What both twins must agree on, under the names that the Python modules have for it. */
static const struct {
    const char *name;
    long value;
} CONSTANTS[] = {
    {"PUB", PUB}, {"SUB", SUB}, {"UNSUB", UNSUB}, {"CONNECT", CONNECT}, {"PING", PING},
    {"PONG", PONG}, {"OK", OK}, {"FAIL", FAIL}, {"MSG", MSG}, {"INFO", INFO}, {"ERR", ERR},
    {"KIND", FIELD_KIND}, {"SUBJECT", FIELD_SUBJECT}, {"REPLY", FIELD_REPLY},
    {"HEADER_BYTES", FIELD_HEADER_BYTES}, {"SIZE", FIELD_SIZE}, {"DATA", FIELD_DATA},
    {"SIZE_DIGITS_MAX", SIZE_DIGITS_MAX}, {"VERB_BYTES_MAX", VERB_BYTES_MAX},
    {"SHARED_BYTES", SHARED_BYTES}, {"WRITE_BYTES", WRITE_BYTES},
    {"WRITE_BUFFERS", WRITE_BUFFERS}, {"RECORD_BYTES_MIN", RECORD_BYTES_MIN},
    {"RECORD_MARK", RECORD_MARK}, {"POLYNOMIAL", S2_POLYNOMIAL},
    {"BLOCK_BYTES_MAX", S2_BLOCK_BYTES_MAX},
};

static const struct {
    const char *name, *text;
} TEXTS[] = {
    {"UNKNOWN_OPERATION", UNKNOWN_OPERATION},
    {"PAYLOAD_VIOLATION", PAYLOAD_VIOLATION},
    {"CONTROL_LINE_EXCEEDED", CONTROL_LINE_EXCEEDED},
    {"MALFORMED", MALFORMED},
};

static int add_constants(PyObject *module) {
    for (Py_ssize_t i = 0; i < LENGTH(CONSTANTS); i++)
        if (PyModule_AddIntConstant(module, CONSTANTS[i].name, CONSTANTS[i].value) < 0)
            return -1;
    for (Py_ssize_t i = 0; i < LENGTH(TEXTS); i++) {
        PyObject *text = PyBytes_FromString(TEXTS[i].text);
        int error = text == NULL ? -1 : PyModule_AddObjectRef(module, TEXTS[i].name, text);
        Py_XDECREF(text);
        if (error < 0)
            return -1;
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_types}, {Py_mod_exec, add_constants}, {0, NULL}};

static struct PyModuleDef speedups = {
    PyModuleDef_HEAD_INIT,
    .m_name = "penstock.hot._speedups",
    .m_doc = "The compiled twins of the functions penstock.hot picks.",
    .m_size = sizeof(Types),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse_types,
    .m_clear = clear_types,
};

PyMODINIT_FUNC PyInit__speedups(void) {
    fill_checksum_tables();
    fill_s2_table();
    return PyModuleDef_Init(&speedups);
}
