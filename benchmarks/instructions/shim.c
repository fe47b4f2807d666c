// Starts and dumps callgrind's counts from Python, by ctypes. With Python.h also at each call and return of a function.
#include <valgrind/callgrind.h>

void count_start(void) { CALLGRIND_START_INSTRUMENTATION; }
void count_stop(void) { CALLGRIND_STOP_INSTRUMENTATION; }
void count_dump(const char *label) { CALLGRIND_DUMP_STATS_AT(label); }

#ifdef WITH_PYTHON
#include <Python.h>

static PyObject *events;
static int on;

static int hook(PyObject *unused, PyFrameObject *frame, int what, PyObject *argument) {
    if (!on || (what != PyTrace_CALL && what != PyTrace_RETURN)) return 0;
    CALLGRIND_DUMP_STATS_AT("event");
    PyObject *event = Py_BuildValue("(iN)", what == PyTrace_CALL, (PyObject *)PyFrame_GetCode(frame));
    PyList_Append(events, event);
    Py_DECREF(event);
    CALLGRIND_ZERO_STATS;
    return 0;
}

void count_hook(PyObject *list) {
    events = list;
    Py_INCREF(list);
    PyEval_SetProfile(hook, NULL);
}

void count_on(int value) {
    on = value;
    CALLGRIND_ZERO_STATS;
}
#endif
