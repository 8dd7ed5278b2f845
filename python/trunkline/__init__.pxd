# `cimport trunkline`: a router without Python objects and without the GIL, for gateways in Cython.
#
# Call `import_trunkline()` once, when your module starts. A router is a number: `Router.c_handle`, or one of your own from
# `table().router_new`. Calls return TRUNKLINE_OK, TRUNKLINE_ALREADY or a negative TRUNKLINE_E_... code and may be made from
# any thread. Compile with `trunkline.get_include()` on the include path.

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memset

from trunkline._capi cimport *

cdef extern from *:
    """
    static const TrunklineApi *trunkline_table = NULL;

    /* Each module that cimports this has a pointer of its own to the one table. */
    static int trunkline_import(void) {
        const TrunklineApi *found;
        if (trunkline_table != NULL) return 0;
        found = (const TrunklineApi *)PyCapsule_Import("trunkline._core._C_API", 0);
        if (found == NULL) return -1;
        if (found->version != TRUNKLINE_API_VERSION || found->size < sizeof(TrunklineApi)) {
            PyErr_Format(PyExc_ImportError, "this module was compiled for version %u of trunkline's C API; there is %u",
                         TRUNKLINE_API_VERSION, found->version);
            return -1;
        }
        trunkline_table = found;
        return 0;
    }
    """
    const TrunklineApi *trunkline_table
    int import_trunkline "trunkline_import"() except -1


cdef inline const TrunklineApi *table() noexcept nogil:
    # All functions of the C API; NULL before import_trunkline().
    return trunkline_table


cdef inline int32_t route(
    uint64_t router, const uint32_t *ids, size_t count, TrunklineDecision *decision
) noexcept nogil:
    # Chooses a worker for a prompt of token ids and books the request on it.
    cdef TrunklineRequest request
    memset(&request, 0, sizeof(request))
    request.size = sizeof(request)
    request.kind = TRUNKLINE_TOKENS
    request.prompt = ids
    request.prompt_len = count
    decision.size = sizeof(TrunklineDecision)
    return trunkline_table.route(router, &request, decision)


cdef inline int32_t route_text(
    uint64_t router, const char *text, size_t length, TrunklineDecision *decision
) noexcept nogil:
    # The same for text.
    cdef TrunklineRequest request
    memset(&request, 0, sizeof(request))
    request.size = sizeof(request)
    request.kind = TRUNKLINE_TEXT
    request.prompt = text
    request.prompt_len = length
    decision.size = sizeof(TrunklineDecision)
    return trunkline_table.route(router, &request, decision)


cdef inline int32_t first_token(uint64_t router, uint64_t decision) noexcept nogil:
    # Says that the first token came.
    return trunkline_table.first_token(router, decision, 0)


cdef inline int32_t complete(uint64_t router, uint64_t decision) noexcept nogil:
    # Says that the request is over, answered or not.
    return trunkline_table.complete(router, decision, NULL, 0)
