/* The clock of trellis/cluster/clock.py, as one C function without arguments.

   `time.clock_gettime` parses its arguments at each call, which takes three times as many
   instructions as reading the clock. The event loop reads the clock before each flush. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <time.h>

#ifdef CLOCK_BOOTTIME
#define CLOCK CLOCK_BOOTTIME
#else
#define CLOCK CLOCK_MONOTONIC
#endif

static PyObject *
boot_seconds(PyObject *module, PyObject *nothing)
{
    struct timespec now;

    if (clock_gettime(CLOCK, &now) != 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyFloat_FromDouble((double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
}

static PyMethodDef functions[] = {
    {"boot_seconds", boot_seconds, METH_NOARGS,
     "Return the time since the machine was started, in seconds, suspended time included."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "trellis.cluster.boot_clock",
    .m_doc = "A clock that runs on while the machine is suspended.",
    .m_size = 0,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit_boot_clock(void)
{
    return PyModule_Create(&definition);
}
