/*
 * The compiled twin of outbox.py, which is the reference.
 *
 * Where pieces are long enough, the kernel gathers them and the sids between them from where
 * they lie, and nothing is joined at all.
 */

#include "twins.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define GATHERED_BYTES 512 /* From this mean size on, two buffers cost less than a copy. */

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

/* The first entries of an outbox, as one system call takes them. */
typedef struct {
    struct iovec buffers[WRITE_BUFFERS];
    int count;
    PyObject *held[WRITE_BUFFERS]; /* keeps the buffers of each entry alive */
    Py_ssize_t sizes[WRITE_BUFFERS];
    Py_ssize_t entries, size;
} Gathering;

static void add_buffer(Gathering *all, Slice slice) {
    all->buffers[all->count++] = (struct iovec){(void *)slice.start, (size_t)slice.size};
    all->sizes[all->entries] += slice.size;
}

/* Return what `sid.join(pieces)` does. */
static PyObject *join(PyObject *entry) {
    return PyObject_CallMethod(PyTuple_GetItem(entry, 0), "join", "O", PyTuple_GetItem(entry, 1));
}

/* Add the pieces and the sids between them where they lie; false is a Python error. */
static bool add_pieces(Gathering *all, Slice sid, PyObject *pieces) {
    Slice piece;
    for (Py_ssize_t i = 0; i < PyList_Size(pieces); i++) {
        if (!as_slice(PyList_GetItem(pieces, i), &piece))
            return false;
        if (i > 0)
            add_buffer(all, sid);
        add_buffer(all, piece);
    }
    return true;
}

static bool is_worth_gathering(const Gathering *all, PyObject *pieces) {
    Py_ssize_t count = PyList_Size(pieces), size = 0;
    Slice piece;
    if (2 * count > WRITE_BUFFERS - all->count)
        return false;
    /* Two will do: pieces are of the messages of one batch, and mostly alike. */
    for (Py_ssize_t i = 1; i < 3 && i < count; i++)
        size += as_slice(PyList_GetItem(pieces, i), &piece) ? piece.size : 0;
    return size >= 2 * GATHERED_BYTES && !PyErr_Occurred();
}

/* Add an entry that is not encoded yet. */
static bool add_encoding(Gathering *all, PyObject *entry) {
    PyObject *pieces = PyTuple_GetItem(entry, 1);
    Slice sid, joined;
    if (pieces == NULL || !PyList_Check(pieces) || !as_slice(PyTuple_GetItem(entry, 0), &sid)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "an entry is bytes, or (sid, pieces)");
        return false;
    }
    if (is_worth_gathering(all, pieces)) {
        Py_INCREF(entry);
        all->held[all->entries] = entry;
        return add_pieces(all, sid, pieces);
    }
    PyObject *encoded = PyErr_Occurred() ? NULL : join(entry);
    all->held[all->entries] = encoded;
    if (!as_slice(encoded, &joined))
        return false;
    add_buffer(all, joined);
    return true;
}

/* Add an entry that is some other buffer: a slice of the payloads of a run. */
static bool add_view(Gathering *all, PyObject *entry) {
    Py_buffer view;
    if (PyObject_GetBuffer(entry, &view, PyBUF_SIMPLE) < 0)
        return false;
    Py_INCREF(entry);
    all->held[all->entries] = entry;
    add_buffer(all, (Slice){view.buf, view.len});
    /* The entry itself, which is held, keeps the memory where it is. */
    PyBuffer_Release(&view);
    return true;
}

static bool add_entry(Gathering *all, PyObject *entry) {
    Slice slice;
    all->held[all->entries] = NULL;
    all->sizes[all->entries] = 0;
    if (PyTuple_Check(entry))
        return add_encoding(all, entry);
    if (!PyBytes_Check(entry))
        return add_view(all, entry);
    Py_INCREF(entry);
    all->held[all->entries] = entry;
    if (!as_slice(entry, &slice))
        return false;
    add_buffer(all, slice);
    return true;
}

static void release(Gathering *all) {
    for (Py_ssize_t i = 0; i < all->entries; i++)
        Py_XDECREF(all->held[i]);
}

static bool gather_entries(Gathering *all, PyObject *outbox) {
    all->count = 0;
    all->entries = all->size = 0;
    Py_ssize_t count = PyList_Size(outbox);
    for (Py_ssize_t i = 0; i < count && all->count < WRITE_BUFFERS && all->size < WRITE_BYTES; i++) {
        bool added = add_entry(all, PyList_GetItem(outbox, i));
        all->size += all->sizes[all->entries++];
        if (!added)
            return false;
    }
    return true;
}

/* Send without blocking; return how many bytes the kernel took, or -1 with an error. */
static Py_ssize_t send_gathered(int fd, Gathering *all) {
    struct msghdr message = {.msg_iov = all->buffers};
    message.msg_iovlen = (__typeof__(message.msg_iovlen))all->count;
    Py_ssize_t sent;
    int error;
    Py_BEGIN_ALLOW_THREADS
    do
        sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    error = errno;
    Py_END_ALLOW_THREADS
    if (sent >= 0)
        return sent;
    if (error == EAGAIN || error == EWOULDBLOCK)
        return 0;
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

/* Return an entry as it was put there, without the part that was sent. */
static PyObject *rest_of(PyObject *entry, Py_ssize_t sent, Py_ssize_t size) {
    if (!PyTuple_Check(entry))
        return PySequence_GetSlice(entry, sent, size);
    PyObject *encoded = join(entry);
    PyObject *rest = encoded != NULL ? PySequence_GetSlice(encoded, sent, size) : NULL;
    Py_XDECREF(encoded);
    return rest;
}

static bool drop_sent(PyObject *outbox, const Gathering *all, Py_ssize_t sent) {
    Py_ssize_t whole = 0;
    while (whole < all->entries && sent >= all->sizes[whole])
        sent -= all->sizes[whole++];
    if (whole < all->entries && sent > 0) {
        PyObject *rest = rest_of(all->held[whole], sent, all->sizes[whole]);
        /* Takes over the reference, also where it fails. */
        if (rest == NULL || PyList_SetItem(outbox, whole, rest) < 0)
            return false;
    }
    return PyList_SetSlice(outbox, 0, whole, NULL) == 0;
}

/* Send once; return how many bytes were taken, or -1 with an error, and whether that was all. */
static Py_ssize_t write_once(Outlet *outlet, int fd, bool *was_all) {
    Gathering all;
    Py_ssize_t sent = -1;
    if (gather_entries(&all, outlet->outbox))
        sent = send_gathered(fd, &all);
    if (sent >= 0) {
        outlet->outbox_bytes -= sent;
        if (!drop_sent(outlet->outbox, &all, sent))
            sent = -1;
    }
    *was_all = sent == all.size;
    release(&all);
    return sent;
}

PyObject *write_outbox(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    const Types *types = PyModule_GetState(module);
    Outlet *outlet = (Outlet *)(count == 2 ? arguments[0] : Py_None);
    if (!PyObject_TypeCheck((PyObject *)outlet, types->outlet) || outlet->outbox == NULL ||
        !PyList_Check(outlet->outbox)) {
        PyErr_SetString(PyExc_TypeError, "expected an outlet and a descriptor");
        return NULL;
    }
    long fd = PyLong_AsLong(arguments[1]);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    Py_ssize_t sent, sent_bytes = 0;
    bool was_all = true;
    while (was_all && PyList_Size(outlet->outbox) > 0) {
        sent = write_once(outlet, (int)fd, &was_all);
        if (sent < 0)
            return NULL;
        sent_bytes += sent;
    }
    return PyLong_FromSsize_t(sent_bytes);
}
