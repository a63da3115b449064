/*
 * The compiled twin of fanout.py, which is the reference.
 *
 * Outlet and Receiver are the bases of Python's Session and Subscription, so that what delivery
 * reads and counts lies at known places of their objects: see docs/adr/0032.
 */

#include "twins.h"

#include <stddef.h>
#include <structmember.h>

/* What one message is to each of its receivers. */
typedef struct {
    Publish publish;
    PyObject *data; /* borrowed from the publish */
    Py_ssize_t size;
} Delivery;

static int traverse_outlet(PyObject *self, visitproc visit, void *arg) {
    Outlet *outlet = (Outlet *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(outlet->outbox);
    Py_VISIT(outlet->dirty);
    Py_VISIT(outlet->congested);
    return 0;
}

static int clear_outlet(PyObject *self) {
    Outlet *outlet = (Outlet *)self;
    Py_CLEAR(outlet->outbox);
    Py_CLEAR(outlet->dirty);
    Py_CLEAR(outlet->congested);
    return 0;
}

static int traverse_receiver(PyObject *self, visitproc visit, void *arg) {
    Receiver *receiver = (Receiver *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(receiver->session);
    Py_VISIT(receiver->sid);
    return 0;
}

static int clear_receiver(PyObject *self) {
    Receiver *receiver = (Receiver *)self;
    Py_CLEAR(receiver->session);
    Py_CLEAR(receiver->sid);
    return 0;
}

static void free_object(PyObject *self, inquiry clear) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static void free_outlet(PyObject *self) {
    free_object(self, clear_outlet);
}

static void free_receiver(PyObject *self) {
    free_object(self, clear_receiver);
}

/* Put a new reference to `value` in place of what a field held. */
static void set_field(PyObject **field, PyObject *value) {
    PyObject *former = *field;
    Py_INCREF(value);
    *field = value;
    Py_XDECREF(former);
}

static int init_outlet(PyObject *self, PyObject *arguments, PyObject *keywords) {
    Outlet *outlet = (Outlet *)self;
    (void)keywords;
    Py_ssize_t congested_bytes;
    PyObject *dirty, *congested;
    if (!PyArg_ParseTuple(arguments, "nO!O!", &congested_bytes, &PyList_Type, &dirty, &PyList_Type,
                          &congested))
        return -1;
    PyObject *outbox = PyList_New(0);
    if (outbox == NULL)
        return -1;
    set_field(&outlet->outbox, outbox);
    Py_DECREF(outbox);
    set_field(&outlet->dirty, dirty);
    set_field(&outlet->congested, congested);
    outlet->congested_bytes = congested_bytes;
    outlet->outbox_bytes = outlet->out_messages = outlet->out_bytes = 0;
    outlet->is_dirty = outlet->is_stuck = false;
    return 0;
}

static int init_receiver(PyObject *self, PyObject *arguments, PyObject *keywords) {
    Receiver *receiver = (Receiver *)self;
    (void)keywords;
    PyObject *session, *sid;
    if (!PyArg_ParseTuple(arguments, "OS", &session, &sid))
        return -1;
    set_field(&receiver->session, session);
    set_field(&receiver->sid, sid);
    receiver->delivered = 0;
    return 0;
}

/* An outlet without its lists was never initialised. */
static bool append_to(PyObject *list, PyObject *item) {
    if (list == NULL || !PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "an outlet needs its lists");
        return false;
    }
    return PyList_Append(list, item) == 0;
}

static bool make_dirty(Outlet *outlet) {
    if (outlet->is_dirty)
        return true;
    outlet->is_dirty = true;
    return append_to(outlet->dirty, (PyObject *)outlet);
}

static bool owe(Outlet *outlet, PyObject *entry, Py_ssize_t size, Py_ssize_t messages,
                Py_ssize_t payload_bytes) {
    if (!append_to(outlet->outbox, entry))
        return false;
    outlet->outbox_bytes += size;
    outlet->out_messages += messages;
    outlet->out_bytes += payload_bytes;
    if (!make_dirty(outlet))
        return false;
    return outlet->outbox_bytes <= outlet->congested_bytes || outlet->is_stuck ||
           append_to(outlet->congested, (PyObject *)outlet);
}

static PyObject *enqueue(PyObject *self, PyObject *const arguments[], Py_ssize_t count) {
    Py_ssize_t numbers[3] = {0};
    if (count < 2 || count > 4) {
        PyErr_Format(PyExc_TypeError, "expected 2 to 4 arguments, got %zd", count);
        return NULL;
    }
    for (Py_ssize_t i = 1; i < count; i++) {
        numbers[i - 1] = PyLong_AsSsize_t(arguments[i]);
        if (numbers[i - 1] == -1 && PyErr_Occurred())
            return NULL;
    }
    if (!owe((Outlet *)self, arguments[0], numbers[0], numbers[1], numbers[2]))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *mark_dirty(PyObject *self, PyObject *unused) {
    (void)unused;
    if (!make_dirty((Outlet *)self))
        return NULL;
    Py_RETURN_NONE;
}

/* Encode a delivery to a sid: all of it, or of a long one the control line alone. */
static PyObject *encode_delivery(const Delivery *delivery, PyObject *sid) {
    const Publish *publish = &delivery->publish;
    Slice middle, data = {publish->data, publish->stride};
    if (!as_slice(sid, &middle))
        return NULL;
    if (delivery->size >= SHARED_BYTES)
        data.size = 0;
    Py_ssize_t size = publish->before.size + middle.size + publish->after.size + data.size;
    PyObject *encoded = PyBytes_FromStringAndSize(NULL, size);
    if (encoded == NULL)
        return NULL;
    char *target = put_half_line(PyBytes_AsString(encoded), &publish->before);
    put(put_half_line(put(target, middle), &publish->after), data);
    return encoded;
}

static bool deliver_to(const Types *types, const Delivery *delivery, PyObject *object,
                       PyObject *encoded) {
    Receiver *receiver = (Receiver *)object;
    if (!PyObject_TypeCheck(object, types->receiver) || receiver->session == NULL ||
        !PyObject_TypeCheck(receiver->session, types->outlet)) {
        PyErr_SetString(PyExc_TypeError, "a receiver with an outlet is needed");
        return false;
    }
    Outlet *outlet = (Outlet *)receiver->session;
    Py_ssize_t encoded_bytes = PyBytes_Size(encoded);
    receiver->delivered++;
    if (delivery->size < SHARED_BYTES)
        return owe(outlet, encoded, encoded_bytes, 1, delivery->size);
    return append_to(outlet->outbox, encoded) &&
           owe(outlet, delivery->data, encoded_bytes + delivery->publish.stride, 1,
               delivery->size);
}

/* Deliver to receivers that share a sid. */
static bool deliver_shared(const Types *types, const Delivery *delivery, PyObject *sid,
                           PyObject *receivers) {
    PyObject *encoded = encode_delivery(delivery, sid);
    bool done = encoded != NULL;
    Py_ssize_t count = PyTuple_Size(receivers);
    for (Py_ssize_t i = 0; i < count && done; i++)
        done = deliver_to(types, delivery, PyTuple_GetItem(receivers, i), encoded);
    Py_XDECREF(encoded);
    return done && count >= 0;
}

static bool deliver_single(const Types *types, const Delivery *delivery, PyObject *object) {
    if (object == NULL || !PyObject_TypeCheck(object, types->receiver)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a receiver is needed");
        return false;
    }
    PyObject *sid = ((Receiver *)object)->sid;
    PyObject *encoded = encode_delivery(delivery, sid != NULL ? sid : Py_None);
    bool done = encoded != NULL && deliver_to(types, delivery, object, encoded);
    Py_XDECREF(encoded);
    return done;
}

/* Return one member of a queue group, borrowed. */
static PyObject *choose(PyObject *members, PyObject *random) {
    PyObject *number = PyObject_CallNoArgs(random);
    double unit = number != NULL ? PyFloat_AsDouble(number) : -1.0;
    Py_XDECREF(number);
    if (PyErr_Occurred())
        return NULL;
    return PyTuple_GetItem(members, (Py_ssize_t)(unit * (double)PyTuple_Size(members)));
}

/* Deliver a message in each of its ways. */
static bool deliver_all(const Types *types, const Delivery *delivery, PyObject *const ways[3],
                        PyObject *random) {
    PyObject *shared = ways[0], *single = ways[1], *queues = ways[2];
    for (Py_ssize_t i = 0; i < PyTuple_Size(shared); i++) {
        PyObject *group = PyTuple_GetItem(shared, i), *sid = PyTuple_GetItem(group, 0);
        PyObject *receivers = sid != NULL ? PyTuple_GetItem(group, 1) : NULL;
        if (receivers == NULL || !deliver_shared(types, delivery, sid, receivers))
            return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(single); i++)
        if (!deliver_single(types, delivery, PyTuple_GetItem(single, i)))
            return false;
    for (Py_ssize_t i = 0; i < PyTuple_Size(queues); i++)
        if (!deliver_single(types, delivery, choose(PyTuple_GetItem(queues, i), random)))
            return false;
    return !PyErr_Occurred();
}

static bool get_delivery(PyObject *tuple, Delivery *delivery) {
    if (!get_publish(tuple, &delivery->publish))
        return false;
    delivery->data = PyTuple_GetItem(tuple, 5);
    delivery->size = delivery->publish.stride - 2;
    return true;
}

PyObject *fan_out(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    Delivery delivery;
    if (count != 5) {
        PyErr_Format(PyExc_TypeError, "expected 5 arguments, got %zd", count);
        return NULL;
    }
    if (!get_delivery(arguments[3], &delivery))
        return NULL;
    if (delivery.publish.last != 0) {
        PyErr_SetString(PyExc_ValueError, "the sizes of a publish do not fit its data");
        return NULL;
    }
    if (!deliver_all(PyModule_GetState(module), &delivery, arguments, arguments[4]))
        return NULL;
    Py_RETURN_NONE;
}

/* Return the route of a publish, borrowed; NULL where none is known, and for an error. */
static PyObject *find_route(PyObject *routes, PyObject *publish) {
    PyObject *subject = PyTuple_GetItem(publish, 1);
    return subject != NULL ? PyDict_GetItemWithError(routes, subject) : NULL;
}

/* Deliver a message if that is to be done alone: 1 is yes, 0 no, -1 an error. */
static int deliver_alone(const Types *types, PyObject *publish, PyObject *route, bool is_repeated,
                         PyObject *random) {
    Delivery delivery;
    Slice data = EMPTY;
    Py_ssize_t size = 0;
    PyObject *ways = PyObject_GetAttr(route, types->ways);
    int done = ways == NULL ? -1 : 0;
    if (ways != NULL && ways != Py_None) {
        PyObject *const each[] = {PyTuple_GetItem(ways, 0), PyTuple_GetItem(ways, 1),
                                  PyTuple_GetItem(ways, 2)};
        bool is_read = each[2] != NULL && get_number(publish, FIELD_SIZE, &size) &&
                       get_bytes(publish, FIELD_DATA, &data);
        if (!is_read)
            done = -1;
        else if (data.size == size + 2 && (!is_repeated || PyTuple_Size(each[2]) > 0))
            done = get_delivery(publish, &delivery) && deliver_all(types, &delivery, each, random)
                       ? 1
                       : -1;
    }
    Py_XDECREF(ways);
    return done;
}

static Py_ssize_t deliver_each(const Types *types, PyObject *publishes, PyObject *routes,
                               PyObject *random) {
    Py_ssize_t index = 0, count = PyTuple_Size(publishes);
    PyObject *following = count > 0 ? find_route(routes, PyTuple_GetItem(publishes, 0)) : NULL;
    for (; index < count && following != NULL; index++) {
        PyObject *publish = PyTuple_GetItem(publishes, index), *route = following;
        bool has_next = index + 1 < count;
        following = has_next ? find_route(routes, PyTuple_GetItem(publishes, index + 1)) : NULL;
        if (PyErr_Occurred())
            return -1;
        int done = deliver_alone(types, publish, route, route == following, random);
        if (done <= 0)
            return done < 0 ? -1 : index;
    }
    return PyErr_Occurred() ? -1 : index;
}

PyObject *fan_out_each(PyObject *module, PyObject *const arguments[], Py_ssize_t count) {
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "expected 3 arguments, got %zd", count);
        return NULL;
    }
    /* A tuple of its own keeps every publish alive, whatever becomes of the list. */
    PyObject *publishes = PySequence_Tuple(arguments[0]);
    if (publishes == NULL)
        return NULL;
    Py_ssize_t done =
        deliver_each(PyModule_GetState(module), publishes, arguments[1], arguments[2]);
    Py_DECREF(publishes);
    return done < 0 ? NULL : PyLong_FromSsize_t(done);
}

static PyMethodDef outlet_methods[] = {
    {"enqueue", FAST(enqueue), "Owe the peer `size` more bytes."},
    {"mark_dirty", mark_dirty, METH_NOARGS, "Be written at the end of this tick."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef outlet_members[] = {
    {"outbox", T_OBJECT_EX, offsetof(Outlet, outbox), 0, NULL},
    {"outbox_bytes", T_PYSSIZET, offsetof(Outlet, outbox_bytes), 0, NULL},
    {"out_messages", T_PYSSIZET, offsetof(Outlet, out_messages), 0, NULL},
    {"out_bytes", T_PYSSIZET, offsetof(Outlet, out_bytes), 0, NULL},
    {"congested_bytes", T_PYSSIZET, offsetof(Outlet, congested_bytes), 0, NULL},
    {"is_dirty", T_BOOL, offsetof(Outlet, is_dirty), 0, NULL},
    {"is_stuck", T_BOOL, offsetof(Outlet, is_stuck), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef receiver_members[] = {
    {"session", T_OBJECT_EX, offsetof(Receiver, session), 0, NULL},
    {"sid", T_OBJECT_EX, offsetof(Receiver, sid), 0, NULL},
    {"delivered", T_PYSSIZET, offsetof(Receiver, delivered), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot outlet_slots[] = {
    {Py_tp_doc, "Where messages leave to one peer."},
    {Py_tp_init, init_outlet},
    {Py_tp_traverse, traverse_outlet},
    {Py_tp_clear, clear_outlet},
    {Py_tp_dealloc, free_outlet},
    {Py_tp_methods, outlet_methods},
    {Py_tp_members, outlet_members},
    {0, NULL},
};

static PyType_Slot receiver_slots[] = {
    {Py_tp_doc, "Whom a message goes to."},
    {Py_tp_init, init_receiver},
    {Py_tp_traverse, traverse_receiver},
    {Py_tp_clear, clear_receiver},
    {Py_tp_dealloc, free_receiver},
    {Py_tp_members, receiver_members},
    {0, NULL},
};

#define BASE_TYPE_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC)

static PyType_Spec outlet_spec = {
    .name = "penstock.hot._speedups.Outlet",
    .basicsize = sizeof(Outlet),
    .flags = BASE_TYPE_FLAGS,
    .slots = outlet_slots,
};

static PyType_Spec receiver_spec = {
    .name = "penstock.hot._speedups.Receiver",
    .basicsize = sizeof(Receiver),
    .flags = BASE_TYPE_FLAGS,
    .slots = receiver_slots,
};

int add_types(PyObject *module) {
    Types *types = PyModule_GetState(module);
    types->outlet = (PyTypeObject *)PyType_FromModuleAndSpec(module, &outlet_spec, NULL);
    types->receiver = (PyTypeObject *)PyType_FromModuleAndSpec(module, &receiver_spec, NULL);
    types->ways = PyUnicode_InternFromString("ways");
    if (types->outlet == NULL || types->receiver == NULL || types->ways == NULL)
        return -1;
    return PyModule_AddType(module, types->outlet) < 0 ||
                   PyModule_AddType(module, types->receiver) < 0
               ? -1
               : 0;
}

int traverse_types(PyObject *module, visitproc visit, void *arg) {
    Types *types = PyModule_GetState(module);
    Py_VISIT(types->outlet);
    Py_VISIT(types->receiver);
    return 0;
}

int clear_types(PyObject *module) {
    Types *types = PyModule_GetState(module);
    Py_CLEAR(types->outlet);
    Py_CLEAR(types->receiver);
    Py_CLEAR(types->ways);
    return 0;
}
