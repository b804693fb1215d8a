# The table of tuned choices, and when those remembered on disk get into it.

cdef uint64_t devices_with_choices = 0     # a bit for each whose choices have been loaded


cdef inline bint has_choices(int device) noexcept:
    return not 0 <= device < 64 or devices_with_choices >> device & 1


cdef int load_choices(int device) except -1:
    """Before the first call on each GPU: which choices apply depends on the GPU, and importing
    dlkern touches none and reads no files. From then on it costs a test of one bit. (Keys name an
    architecture: on a machine with several models of one, they share what is loaded last.)"""
    global devices_with_choices
    from dlkern import tuning      # which needs this module
    tuning.load(device)
    devices_with_choices |= <uint64_t>1 << device
    return 0


def set_tuning(key, choice):
    """Both None: clear the table."""
    cdef bytes key_bytes, choice_bytes
    cdef const char* key_chars = NULL
    cdef const char* choice_chars = NULL
    if key is not None:
        key_bytes = key.encode()
        key_chars = key_bytes
    if choice is not None:
        choice_bytes = choice.encode()
        choice_chars = choice_bytes
    check(dlk_set_tuning(key_chars, choice_chars))


def get_tuning(key):
    """The choice set for `key`, or None."""
    cdef char choice[256]
    cdef bytes key_bytes = key.encode()
    check(dlk_get_tuning(key_bytes, choice, sizeof(choice)))
    return choice.decode() or None
