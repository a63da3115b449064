/*
 * The compiled twin of wire.py, which is the reference.
 *
 * A parse is one Scan on the stack, which walks the buffer line by line; every operation is a
 * new tuple that owns copies of its bytes.
 */

#include "twins.h"

#define FIELDS_MAX 5 /* HMSG subject sid reply header_bytes size */

/* A line before a payload: `names` names, perhaps a reply, and `numbers` numbers. */
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

/* An unparsable count means 0: unsubscribe immediately, as nats-server does. */
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

PyObject *parse_commands(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    (void)module;
    return parse(arguments, count, (Scan){.verbs = COMMANDS, .verbs_count = LENGTH(COMMANDS)});
}

PyObject *parse_messages(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    (void)module;
    return parse(arguments, count, (Scan){.verbs = MESSAGES, .verbs_count = LENGTH(MESSAGES)});
}

static HalfLine half_line(Slice first, Slice second, Slice third) {
    return (HalfLine){{first, second, third}, first.size + second.size + third.size};
}

/* Write right to left, as digits come, with a space in front; return where it starts. */
static char *put_number(char *end, Py_ssize_t number) {
    do
        *--end = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    *--end = ' ';
    return end;
}

/* Look into the tuple of a publish, which must outlive `publish`. */
bool get_publish(PyObject *tuple, Publish *publish) {
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

PyObject *publish_totals(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
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

PyObject *message_pieces(PyObject *module, PyObject *argument) {
    (void)module;
    /* A tuple of its own keeps every publish alive, whatever becomes of the list. */
    PyObject *publishes = PySequence_Tuple(argument);
    PyObject *pieces = publishes != NULL ? PyList_New(0) : NULL;
    if (pieces != NULL && !append_pieces(pieces, publishes))
        Py_CLEAR(pieces);
    Py_XDECREF(publishes);
    return pieces;
}

