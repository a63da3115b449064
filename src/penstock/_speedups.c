/*
 * The compiled twin of three functions of wire.py: parse_commands, parse_messages
 * and message_pieces. wire.py is the reference and says what they mean; this file
 * gives equal results, and the tests hold the two together.
 *
 * Nothing is kept between calls. A parse is one Scan on the stack, which walks the
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

#define CRLF "\r\n"
#define SIZE_DIGITS_MAX 9
#define VERB_BYTES_MAX 7
#define FIELDS_MAX 5 /* HMSG subject sid reply header_bytes size */

static const char UNKNOWN_OPERATION[] = "Unknown Protocol Operation";
static const char PAYLOAD_VIOLATION[] = "Maximum Payload Violation";
static const char CONTROL_LINE_EXCEEDED[] = "maximum control line exceeded";
static const char MALFORMED[] = "";

/* Before a payload, a line has so many names, perhaps a reply, and so many numbers. */
typedef struct {
    const char *name;
    Py_ssize_t size;
    int kind;
    int names;
    int numbers;
} Verb;

static const Verb COMMANDS[] = {
    {"PUB", 3, PUB, 1, 1},   {"HPUB", 4, PUB, 1, 2},        {"SUB", 3, SUB, 0, 0},
    {"UNSUB", 5, UNSUB, 0, 0}, {"CONNECT", 7, CONNECT, 0, 0}, {"PING", 4, PING, 0, 0},
    {"PONG", 4, PONG, 0, 0}, {"+OK", 3, OK, 0, 0},
};

static const Verb MESSAGES[] = {
    {"MSG", 3, MSG, 2, 1},   {"HMSG", 4, MSG, 2, 2},  {"INFO", 4, INFO, 0, 0},
    {"-ERR", 4, ERR, 0, 0},  {"PING", 4, PING, 0, 0}, {"PONG", 4, PONG, 0, 0},
    {"+OK", 3, OK, 0, 0},
};

typedef struct {
    const char *start;
    Py_ssize_t size;
} Slice;

/* One walk over one buffer. The current line is `position` up to `body`. */
typedef struct {
    const Verb *verbs;
    Py_ssize_t verbs_count;
    Py_ssize_t payload_bytes_max;
    Py_ssize_t control_line_bytes_max;
    const char *position;
    const char *body;
    const char *end;
    Py_ssize_t needed;
    const char *failure;
} Scan;

/* What a line with a payload says; the payload is `scan->body`, `size` bytes and CRLF. */
typedef struct {
    Slice fields[FIELDS_MAX];
    Slice reply;
    Py_ssize_t header_bytes;
    Py_ssize_t size;
} Announcement;

/* ---- Values ---- */

static PyObject *
new_bytes(Slice slice)
{
    return PyBytes_FromStringAndSize(slice.start, slice.size);
}

static PyObject *
new_number(Py_ssize_t number)
{
    return PyLong_FromSsize_t(number);
}

/* Make a tuple of new references, and take them over; a NULL is an error already raised. */
static PyObject *
new_tuple(PyObject *const items[], Py_ssize_t count)
{
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

#define NEW_TUPLE(...)                                           \
    new_tuple((PyObject *const[]){__VA_ARGS__},                  \
              LENGTH(((PyObject *const[]){__VA_ARGS__})))

/* Append a new reference, and take it over; a NULL is an error already raised. */
static bool
append_new(PyObject *list, PyObject *item)
{
    if (item == NULL)
        return false;
    int error = PyList_Append(list, item);
    Py_DECREF(item);
    return error == 0;
}

/* Say why the peer is refused: the operation at hand becomes a FAIL, the last one. */
static void *
fail(Scan *scan, const char *text)
{
    scan->failure = text;
    return NULL;
}

/* ---- Lines ---- */

/* What bytes.split() splits on. */
static bool
is_white_space(char byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static char
upper(char byte)
{
    return byte >= 'a' && byte <= 'z' ? (char)(byte - 'a' + 'A') : byte;
}

static bool
equals_in_capitals(const char *bytes, const char *name, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < size; i++)
        if (upper(bytes[i]) != name[i])
            return false;
    return true;
}

static Py_ssize_t
smaller(Py_ssize_t one, Py_ssize_t other)
{
    return one < other ? one : other;
}

/* Split at white space; more than `FIELDS_MAX` fields are counted as one more, and not kept. */
static int
split(Slice text, Slice fields[FIELDS_MAX])
{
    const char *byte = text.start, *end = text.start + text.size;
    for (int count = 0;; count++) {
        while (byte < end && is_white_space(*byte))
            byte++;
        if (byte == end || count == FIELDS_MAX)
            return byte == end ? count : count + 1;
        fields[count].start = byte;
        while (byte < end && !is_white_space(*byte))
            byte++;
        fields[count].size = byte - fields[count].start;
    }
}

static bool
read_number(Slice field, Py_ssize_t *number)
{
    if (field.size > SIZE_DIGITS_MAX)
        return false;
    *number = 0;
    for (Py_ssize_t i = 0; i < field.size; i++) {
        if (field.start[i] < '0' || field.start[i] > '9')
            return false;
        *number = *number * 10 + (field.start[i] - '0');
    }
    return true;
}

/* Refuse a line that can no longer become valid, so that garbage is not waited on. */
static void *
check_incomplete(Scan *scan)
{
    Py_ssize_t size = scan->end - scan->position;
    bool possible = false;
    for (Py_ssize_t i = 0; i < scan->verbs_count && !possible; i++) {
        const Verb *verb = &scan->verbs[i];
        possible = equals_in_capitals(scan->position, verb->name, smaller(size, verb->size));
    }
    if (!possible)
        return fail(scan, UNKNOWN_OPERATION);
    if (size - VERB_BYTES_MAX - 1 > scan->control_line_bytes_max)
        return fail(scan, CONTROL_LINE_EXCEEDED);
    return NULL;
}

/* Return the verb of a whole line, and the rest of the line in `arguments`. */
static const Verb *
split_line(Scan *scan, Slice line, Slice *arguments)
{
    if (line.size > 0 && line.start[line.size - 1] == '\r')
        line.size--;
    const char *byte = line.start, *end = line.start + line.size;
    while (byte < end && !is_white_space(*byte))
        byte++;
    Py_ssize_t size = byte - line.start;
    while (byte < end && is_white_space(*byte))
        byte++;
    *arguments = (Slice){byte, end - byte};
    for (Py_ssize_t i = 0; i < scan->verbs_count; i++) {
        const Verb *verb = &scan->verbs[i];
        if (verb->size != size || !equals_in_capitals(line.start, verb->name, size))
            continue;
        if (arguments->size > scan->control_line_bytes_max)
            return fail(scan, CONTROL_LINE_EXCEEDED);
        return verb;
    }
    return fail(scan, UNKNOWN_OPERATION);
}

/* ---- Operations: NULL is a failure, a Python error, or a payload that is not all here ---- */

/* Read a line that comes before a payload, and see that the payload is all here. */
static bool
read_announcement(Scan *scan, const Verb *verb, Slice arguments, Announcement *announcement)
{
    Slice *fields = announcement->fields;
    int names = verb->names, numbers = verb->numbers;
    int count = split(arguments, fields);
    if (count != names + numbers && count != names + 1 + numbers)
        return fail(scan, MALFORMED);
    announcement->reply = count > names + numbers ? fields[names] : (Slice){"", 0};
    announcement->header_bytes = 0;
    if (!read_number(fields[count - 1], &announcement->size))
        return fail(scan, MALFORMED);
    if (numbers == 2 && !read_number(fields[count - 2], &announcement->header_bytes))
        return fail(scan, MALFORMED);
    if (announcement->header_bytes > announcement->size)
        return fail(scan, MALFORMED);
    if (announcement->size > scan->payload_bytes_max)
        return fail(scan, PAYLOAD_VIOLATION);
    if (scan->end - scan->body < announcement->size + 2) {
        scan->needed = scan->body - scan->position + announcement->size + 2;
        return false;
    }
    if (memcmp(scan->body + announcement->size, CRLF, 2) != 0)
        return fail(scan, UNKNOWN_OPERATION);
    return true;
}

/* Count the whole messages from `position` on that have this same control line. */
static Py_ssize_t
count_run(const Scan *scan, Py_ssize_t line_size, Py_ssize_t stride)
{
    Py_ssize_t count = 1;
    const char *next = scan->position + stride;
    while (scan->end - next >= stride && memcmp(next, scan->position, (size_t)line_size) == 0 &&
           memcmp(next + stride - 2, CRLF, 2) == 0) {
        next += stride;
        count++;
    }
    return count;
}

/* Copy the payloads of a run, each with its CRLF, one after another. */
static PyObject *
gather_run(const char *body, Py_ssize_t count, Py_ssize_t payload_size, Py_ssize_t stride)
{
    if (count == 1)
        return PyBytes_FromStringAndSize(body, payload_size);
    PyObject *data = PyBytes_FromStringAndSize(NULL, count * payload_size);
    if (data == NULL)
        return NULL;
    char *target = PyBytes_AsString(data);
    for (Py_ssize_t i = 0; i < count; i++)
        memcpy(target + i * payload_size, body + i * stride, (size_t)payload_size);
    return data;
}

static PyObject *
read_publish(Scan *scan, const Verb *verb, Slice arguments)
{
    Announcement line;
    if (!read_announcement(scan, verb, arguments, &line))
        return NULL;
    Py_ssize_t line_size = scan->body - scan->position;
    Py_ssize_t stride = line_size + line.size + 2;
    Py_ssize_t count = count_run(scan, line_size, stride);
    const char *body = scan->body;
    scan->body = scan->position + count * stride;
    return NEW_TUPLE(new_number(PUB), new_bytes(line.fields[0]), new_bytes(line.reply),
                     new_number(line.header_bytes), new_number(line.size),
                     gather_run(body, count, line.size + 2, stride));
}

static PyObject *
read_message(Scan *scan, const Verb *verb, Slice arguments)
{
    Announcement line;
    if (!read_announcement(scan, verb, arguments, &line))
        return NULL;
    Slice payload = {scan->body, line.size};
    scan->body += line.size + 2;
    return NEW_TUPLE(new_number(MSG), new_bytes(line.fields[0]), new_bytes(line.fields[1]),
                     new_bytes(line.reply), new_number(line.header_bytes), new_bytes(payload));
}

static PyObject *
read_subscribe(Scan *scan, Slice arguments)
{
    Slice fields[FIELDS_MAX];
    int count = split(arguments, fields);
    if (count != 2 && count != 3)
        return fail(scan, MALFORMED);
    Slice queue = count == 3 ? fields[1] : (Slice){"", 0};
    return NEW_TUPLE(new_number(SUB), new_bytes(fields[0]), new_bytes(queue),
                     new_bytes(fields[count - 1]));
}

static PyObject *
read_unsubscribe(Scan *scan, Slice arguments)
{
    Slice fields[FIELDS_MAX];
    Py_ssize_t messages_max = 0;
    int count = split(arguments, fields);
    if (count == 0)
        return fail(scan, UNKNOWN_OPERATION);
    if (count > 2 || (count == 2 && !read_number(fields[1], &messages_max)))
        return fail(scan, MALFORMED);
    return NEW_TUPLE(new_number(UNSUB), new_bytes(fields[0]), new_number(messages_max));
}

static Slice
strip_quotes(Slice text)
{
    for (; text.size > 0 && text.start[0] == '\''; text.size--)
        text.start++;
    while (text.size > 0 && text.start[text.size - 1] == '\'')
        text.size--;
    return text;
}

static PyObject *
read_operation(Scan *scan)
{
    const char *line_end = memchr(scan->position, '\n', (size_t)(scan->end - scan->position));
    if (line_end == NULL)
        return check_incomplete(scan);
    scan->body = line_end + 1;
    Slice arguments;
    const Verb *verb =
        split_line(scan, (Slice){scan->position, line_end - scan->position}, &arguments);
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
        return NEW_TUPLE(new_number(verb->kind), new_bytes(arguments));
    case ERR:
        return NEW_TUPLE(new_number(ERR), new_bytes(strip_quotes(arguments)));
    default:
        return NEW_TUPLE(new_number(verb->kind));
    }
}

/* ---- Parsers ---- */

/* Append every operation of the buffer; false is a Python error. */
static bool
read_operations(Scan *scan, PyObject *operations)
{
    while (scan->position < scan->end) {
        PyObject *operation = read_operation(scan);
        if (operation == NULL)
            break;
        if (!append_new(operations, operation))
            return false;
        scan->position = scan->body;
    }
    if (scan->failure != NULL) {
        Slice text = {scan->failure, (Py_ssize_t)strlen(scan->failure)};
        return append_new(operations, NEW_TUPLE(new_number(FAIL), new_bytes(text)));
    }
    return PyErr_Occurred() == NULL;
}

static PyObject *
parse(PyObject *const arguments[], Py_ssize_t count, const Verb *verbs, Py_ssize_t verbs_count)
{
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "expected 3 arguments, got %zd", count);
        return NULL;
    }
    Scan scan = {.verbs = verbs, .verbs_count = verbs_count};
    /* NULL: a limit too large for C is clamped, which is as good as none. */
    scan.payload_bytes_max = PyNumber_AsSsize_t(arguments[1], NULL);
    scan.control_line_bytes_max = PyNumber_AsSsize_t(arguments[2], NULL);
    Py_buffer buffer;
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[0], &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    scan.position = buffer.buf;
    scan.end = scan.position + buffer.len;
    PyObject *operations = PyList_New(0);
    if (operations != NULL && !read_operations(&scan, operations))
        Py_CLEAR(operations);
    Py_ssize_t consumed = scan.position - (const char *)buffer.buf;
    PyBuffer_Release(&buffer);
    if (operations == NULL)
        return NULL;
    return NEW_TUPLE(operations, new_number(consumed), new_number(scan.needed));
}

static PyObject *
parse_commands(PyObject *Py_UNUSED(module), PyObject *const arguments[], Py_ssize_t count)
{
    return parse(arguments, count, COMMANDS, LENGTH(COMMANDS));
}

static PyObject *
parse_messages(PyObject *Py_UNUSED(module), PyObject *const arguments[], Py_ssize_t count)
{
    return parse(arguments, count, MESSAGES, LENGTH(MESSAGES));
}

/* ---- Deliveries ---- */

/* A publish, and what its deliveries have in common; `sizes` ends the control line. */
typedef struct {
    Slice verb;
    Slice subject;
    Slice reply;
    Slice data;
    Py_ssize_t stride;
    char sizes[48];
    Py_ssize_t sizes_size;
} Publish;

static bool
get_bytes(PyObject *tuple, Py_ssize_t index, Slice *slice)
{
    char *start;
    if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, index), &start, &slice->size) < 0)
        return false;
    slice->start = start;
    return true;
}

static bool
get_number(PyObject *tuple, Py_ssize_t index, Py_ssize_t *number)
{
    *number = PyLong_AsSsize_t(PyTuple_GetItem(tuple, index));
    return *number != -1 || !PyErr_Occurred();
}

static char *
put(char *target, const char *bytes, Py_ssize_t size)
{
    memcpy(target, bytes, (size_t)size);
    return target + size;
}

static char *
put_number(char *target, Py_ssize_t number)
{
    char digits[24];
    char *first = digits + sizeof(digits);
    do
        *--first = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    return put(target, first, digits + sizeof(digits) - first);
}

/* Look into a publish; its slices live as long as the tuple does. */
static bool
get_publish(PyObject *tuple, Publish *publish)
{
    Py_ssize_t header_bytes, size;
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != 6) {
        PyErr_SetString(PyExc_ValueError, "a publish is a tuple of 6");
        return false;
    }
    if (!get_bytes(tuple, 1, &publish->subject) || !get_bytes(tuple, 2, &publish->reply) ||
        !get_number(tuple, 3, &header_bytes) || !get_number(tuple, 4, &size) ||
        !get_bytes(tuple, 5, &publish->data))
        return false;
    if (header_bytes < 0 || size < 0 || size > publish->data.size - 2) {
        PyErr_SetString(PyExc_ValueError, "a publish has at least one payload");
        return false;
    }
    publish->stride = size + 2;
    publish->verb = header_bytes ? (Slice){"HMSG ", 5} : (Slice){"MSG ", 4};
    char *target = publish->sizes;
    if (header_bytes) {
        target = put_number(target, header_bytes);
        *target++ = ' ';
    }
    target = put(put_number(target, size), CRLF, 2);
    publish->sizes_size = target - publish->sizes;
    return true;
}

/* Write what stands before the sid in the control line of a delivery. */
static char *
put_before(char *target, const Publish *publish)
{
    target = put(target, publish->verb.start, publish->verb.size);
    target = put(target, publish->subject.start, publish->subject.size);
    return put(target, " ", 1);
}

static Py_ssize_t
before_size(const Publish *publish)
{
    return publish->verb.size + publish->subject.size + 1;
}

/* Write what stands after the sid in the control line of a delivery. */
static char *
put_after(char *target, const Publish *publish)
{
    target = put(target, " ", 1);
    if (publish->reply.size > 0)
        target = put(put(target, publish->reply.start, publish->reply.size), " ", 1);
    return put(target, publish->sizes, publish->sizes_size);
}

static Py_ssize_t
after_size(const Publish *publish)
{
    return 1 + publish->reply.size + (publish->reply.size > 0) + publish->sizes_size;
}

/*
 * Make what stands between two sids: the rest of a delivery of `behind`, whose
 * payload is at `offset`, and the start of one of `ahead`. Either may be missing.
 */
static PyObject *
new_piece(const Publish *behind, Py_ssize_t offset, const Publish *ahead)
{
    Py_ssize_t size = (behind != NULL ? after_size(behind) + behind->stride : 0) +
                      (ahead != NULL ? before_size(ahead) : 0);
    PyObject *piece = PyBytes_FromStringAndSize(NULL, size);
    if (piece == NULL)
        return NULL;
    char *target = PyBytes_AsString(piece);
    if (behind != NULL)
        target = put(put_after(target, behind), behind->data.start + offset, behind->stride);
    if (ahead != NULL)
        put_before(target, ahead);
    return piece;
}

/* Append the pieces of every publish of a tuple. */
static bool
append_pieces(PyObject *pieces, PyObject *publishes)
{
    Publish two[2];
    const Publish *behind = NULL;
    Py_ssize_t last = 0;
    Py_ssize_t count = PyTuple_Size(publishes);
    for (Py_ssize_t i = 0; i < count; i++) {
        Publish *publish = &two[i % 2];
        if (!get_publish(PyTuple_GetItem(publishes, i), publish) ||
            !append_new(pieces, new_piece(behind, last, publish)))
            return false;
        last = publish->data.size - publish->stride;
        for (Py_ssize_t offset = 0; offset < last; offset += publish->stride)
            if (!append_new(pieces, new_piece(publish, offset, publish)))
                return false;
        behind = publish;
    }
    return append_new(pieces, new_piece(behind, last, NULL));
}

static PyObject *
message_pieces(PyObject *Py_UNUSED(module), PyObject *argument)
{
    /* A tuple of its own keeps every publish alive, whatever happens to the list. */
    PyObject *publishes = PySequence_Tuple(argument);
    PyObject *pieces = publishes != NULL ? PyList_New(0) : NULL;
    if (pieces != NULL && !append_pieces(pieces, publishes))
        Py_CLEAR(pieces);
    Py_XDECREF(publishes);
    return pieces;
}

/* ---- Module ---- */

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"parse_commands", FAST(parse_commands), METH_FASTCALL,
     "parse_commands(buffer, payload_bytes_max, control_line_bytes_max, /)\n--\n\n"
     "Parse what a client sent to a server."},
    {"parse_messages", FAST(parse_messages), METH_FASTCALL,
     "parse_messages(buffer, payload_bytes_max, control_line_bytes_max, /)\n--\n\n"
     "Parse what a server sent to a client."},
    {"message_pieces", message_pieces, METH_O,
     "message_pieces(publishes, /)\n--\n\n"
     "Encode publishes as deliveries with the sid left out."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "penstock._speedups",
    .m_doc = "The compiled twin of the hot functions of penstock.wire.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__speedups(void)
{
    return PyModuleDef_Init(&module);
}
