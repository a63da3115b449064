/* The module `penstock.hot._speedups`: its functions, its two types, and its constants. */

#include "twins.h"

/* What `inspect` and `stubtest` read of a function: all its parameters are positional. */
#define SIGNATURE(name, parameters) name "($module, " parameters ", /)\n--\n\n"

static PyMethodDef methods[] = {
    {"parse_commands", FAST(parse_commands),
     SIGNATURE("parse_commands", "buffer, payload_bytes_max, control_line_bytes_max")
     "Parse what a client sent to a server."},
    {"parse_messages", FAST(parse_messages),
     SIGNATURE("parse_messages", "buffer, payload_bytes_max, control_line_bytes_max")
     "Parse what a server sent to a client."},
    {"publish_totals", FAST(publish_totals),
     SIGNATURE("publish_totals", "publishes, reserved")
     "Return what publishes hold in all."},
    {"message_pieces", message_pieces, METH_O,
     SIGNATURE("message_pieces", "publishes")
     "Encode publishes, with the sid left out."},
    {"collect_deliveries", FAST(collect_deliveries),
     SIGNATURE("collect_deliveries", "buffer, wanted, consumer_sequence, sequence_max")
     "Gather JetStream deliveries as columns."},
    {"have_prefix", FAST(have_prefix),
     SIGNATURE("have_prefix", "publishes, prefix")
     "Tell whether all subjects start alike."},
    {"plain_acks", FAST(plain_acks),
     SIGNATURE("plain_acks", "publishes, prefix, start")
     "Return the sequences of plain acks."},
    {"are_siblings", FAST(are_siblings),
     SIGNATURE("are_siblings", "subjects, parent")
     "Tell whether subjects have one parent."},
    {"numbered_answers", FAST(numbered_answers),
     SIGNATURE("numbered_answers", "replies, sid, before, after, first_number")
     "Encode answers that differ in a number."},
    {"stored_answer", FAST(stored_answer),
     SIGNATURE("stored_answer", "reply, stream, message")
     "Return a stored message as an answer."},
    {"first_deliveries", FAST(first_deliveries),
     SIGNATURE("first_deliveries", "messages, prefix, consumer_sequence, pending")
     "Return messages as they are delivered."},
    {"encode_deliveries", FAST(encode_deliveries),
     SIGNATURE("encode_deliveries", "messages, prefix, consumer_sequence, pending, sid, request_count")
     "Encode messages for one subscriber."},
    {"plain_entries", FAST(plain_entries),
     SIGNATURE("plain_entries", "publishes, time_ns")
     "Return publishes as messages to append."},
    {"encode_records", FAST(encode_records),
     SIGNATURE("encode_records", "first_sequence, entries, salt")
     "Return the records of messages."},
    {"decode_messages", FAST(decode_messages),
     SIGNATURE("decode_messages", "buffer, offsets, base, salt")
     "Return the messages of records."},
    {"crc32c", crc32c, METH_O,
     SIGNATURE("crc32c", "data")
     "Return the CRC-32C of some bytes."},
    {"decode_s2", decode_s2, METH_O,
     SIGNATURE("decode_s2", "block")
     "Return what a block of S2 stands for."},
    {"fan_out", FAST(fan_out),
     SIGNATURE("fan_out", "shared, single, queues, publish, random")
     "Deliver one message to its receivers."},
    {"fan_out_each", FAST(fan_out_each),
     SIGNATURE("fan_out_each", "publishes, routes, random")
     "Deliver messages that go one by one."},
    {"write_outbox", FAST(write_outbox),
     SIGNATURE("write_outbox", "outlet, fd")
     "Write an outbox as far as the kernel takes it."},
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
