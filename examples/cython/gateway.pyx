# cython: language_level=3
"""A gateway whose decisions are made without the GIL: batches of requests, routed and released in C.

cythonize -i examples/cython/gateway.pyx    (with CFLAGS="-I$(python -c 'import trunkline; print(trunkline.get_include())')")
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t

cimport trunkline
from trunkline cimport TRUNKLINE_OK, TrunklineDecision

trunkline.import_trunkline()


def send_all(object router, const uint32_t[:, ::1] prompts, uint32_t[::1] workers):
    """Route every row of `prompts` and write the number of its worker; return the tokens believed cached.

    The router's lock is taken once for each decision, Python's never: other threads run meanwhile.
    """
    cdef uint64_t handle = router.c_handle
    cdef TrunklineDecision decision
    cdef int32_t code = TRUNKLINE_OK
    cdef uint64_t cached = 0
    cdef Py_ssize_t row
    if workers.shape[0] < prompts.shape[0]:
        raise ValueError("there is a prompt without a place for its worker")
    if prompts.shape[1] == 0:
        raise ValueError("the prompts are empty")
    with nogil:
        for row in range(prompts.shape[0]):
            code = trunkline.route(handle, &prompts[row, 0], prompts.shape[1], &decision)
            if code != TRUNKLINE_OK:
                break
            workers[row] = decision.worker
            cached += decision.matched_tokens
            # Here the request goes to its worker; then
            trunkline.first_token(handle, decision.id)
            trunkline.complete(handle, decision.id)
    if code != TRUNKLINE_OK:
        raise RuntimeError(last_error())
    return cached


cdef str last_error():
    cdef char text[256]
    trunkline.table().last_error(text, sizeof(text))
    return (<bytes> text).decode(errors="replace")
