/* The compiled twin of s2.py, which is the reference. */

#include "twins.h"

enum { S2_LITERAL, S2_COPY_1, S2_COPY_2, S2_COPY_4 };

static uint32_t s2_table[256];

/* Called when the module is made; the table never changes afterwards. */
void fill_s2_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t checksum = byte;
        for (int bit = 0; bit < 8; bit++)
            checksum = (checksum >> 1) ^ (checksum & 1 ? S2_POLYNOMIAL : 0);
        s2_table[byte] = checksum;
    }
}

PyObject *crc32c(PyObject *module, PyObject *data) {
    (void)module;
    Slice bytes;
    if (!as_slice(data, &bytes))
        return NULL;
    uint32_t checksum = 0xFFFFFFFF;
    for (Py_ssize_t i = 0; i < bytes.size; i++)
        checksum = (checksum >> 8) ^ s2_table[(checksum ^ (unsigned char)bytes.start[i]) & 0xff];
    return PyLong_FromUnsignedLong(checksum ^ 0xFFFFFFFF);
}

/* Take a little-endian number of `size` bytes; -1 if they are not there. */
static int64_t take_little(Cursor *cursor, int size) {
    if (cursor->end - cursor->position < size)
        return -1;
    int64_t number = (int64_t)get_little(cursor->position, size);
    cursor->position += size;
    return number;
}

static int64_t take_s2_size(Cursor *cursor) {
    uint64_t number = 0;
    for (int i = 0; i < 5 && cursor->position < cursor->end; i++) {
        unsigned char byte = (unsigned char)*cursor->position++;
        number |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80)
            return (int64_t)number;
    }
    return -1;
}

/* Take how many bytes come as they are; -1 if that is not there. */
static int64_t take_literal_length(Cursor *cursor, int tag) {
    int length = tag >> 2;
    if (length < 60)
        return length + 1;
    int64_t number = take_little(cursor, length - 59);
    return number < 0 ? -1 : number + 1;
}

/* Take the length of a copy, -1 if it is not there; `offset` is that of the copy before. */
static int64_t take_copy(Cursor *cursor, int tag, int64_t *offset) {
    if ((tag & 3) != S2_COPY_1) {
        *offset = take_little(cursor, (tag & 3) == S2_COPY_2 ? 2 : 4);
        return *offset < 0 ? -1 : (tag >> 2) + 1;
    }
    int64_t length = tag >> 2 & 7, low = take_little(cursor, 1);
    if (low < 0)
        return -1;
    int64_t far = (int64_t)(tag & 0xe0) << 3 | low;
    if (far > 0) {
        *offset = far;
    } else if (length >= 5) {
        static const int64_t bases[] = {4, 1 << 8, 1 << 16};
        int64_t more = take_little(cursor, (int)length - 4);
        if (more < 0)
            return -1;
        length = more + bases[length - 5];
    }
    return length + 4;
}

static bool fill_from_s2(Cursor *cursor, char *start, int64_t size) {
    char *target = start, *end = start + size;
    int64_t offset = 0;
    while (cursor->position < cursor->end) {
        int tag = (unsigned char)*cursor->position++;
        bool is_literal = (tag & 3) == S2_LITERAL;
        int64_t length =
            is_literal ? take_literal_length(cursor, tag) : take_copy(cursor, tag, &offset);
        if (length < 0 || length > end - target)
            return false;
        if (is_literal) {
            if (length > cursor->end - cursor->position)
                return false;
            memcpy(target, cursor->position, (size_t)length);
            cursor->position += length;
            target += length;
        } else {
            if (offset <= 0 || offset > target - start)
                return false;
            for (; length > 0; length--, target++)
                *target = *(target - offset);
        }
    }
    return target == end;
}

PyObject *decode_s2(PyObject *module, PyObject *block) {
    (void)module;
    Slice bytes;
    if (!as_slice(block, &bytes))
        return NULL;
    Cursor cursor = {bytes.start, bytes.start + bytes.size};
    int64_t size = take_s2_size(&cursor);
    if (size > S2_BLOCK_BYTES_MAX) {
        PyErr_SetString(PyExc_ValueError, "an S2 block is too large");
        return NULL;
    }
    PyObject *decoded = size >= 0 ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size) : NULL;
    if (size >= 0 && decoded == NULL)
        return NULL;
    if (size < 0 || !fill_from_s2(&cursor, PyBytes_AsString(decoded), size)) {
        Py_XDECREF(decoded);
        PyErr_SetString(PyExc_ValueError, "an S2 block is damaged");
        return NULL;
    }
    return decoded;
}
