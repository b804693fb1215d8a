# What this build is and what machine it runs on.

check(dlk_check_cpu())    # before any kernel: an ImportError that says how to rebuild


def build_info():
    cdef dlk_build_info info
    info.struct_size = sizeof(dlk_build_info)
    check(dlk_get_build_info(&info))
    return {
        "version": info.version.decode(),
        "gpu": info.gpu.decode(),
        "architectures": [a for a in info.architectures.decode().split(";") if a],
        "compilers": info.compilers.decode(),
        "blas": info.blas.decode(),
        "cpu_arch": info.cpu_arch.decode(),
    }


def device_info(int index):
    cdef dlk_device_info info
    memset(&info, 0, sizeof(dlk_device_info))
    info.struct_size = sizeof(dlk_device_info)
    check(dlk_get_device_info(index, &info))
    return {
        "index": index,
        "name": info.name.decode(),
        "compute_capability": divmod(info.compute_capability, 10),
        "total_memory_bytes": info.total_memory_bytes,
        "free_memory_bytes": info.free_memory_bytes,
        "multiprocessors": info.multiprocessors,
        "driver_version": info.driver_version,
        "runtime_version": info.runtime_version,
    }


def devices():
    return [device_info(index) for index in range(dlk_device_count())]


def set_implementations(names):
    """What the calling thread's calls may choose from, ','-separated; "": anything."""
    cdef bytes chars = names.encode()
    check(dlk_set_implementations(chars))


def set_num_threads(n):
    check(dlk_set_num_threads(<int>integer(Call("set_num_threads", None), "n", n, 32)))


def get_num_threads():
    return dlk_get_num_threads()
