// A disk that is full from a chosen write on, for one file: the rest of that write and all later ones fail until it is closed.
//
//   cc -shared -fPIC -O2 full_disk.c -o full_disk.so
//   FULL_DISK_BELOW=FOLDER FULL_DISK_AT=N FULL_DISK_POINTS=FILE LD_PRELOAD=./full_disk.so ...
//
// FILE is outside FOLDER and starts empty. It gets one byte for each write of any process to a regular file below FOLDER, so
// that its size is their number. FILE.log gets a line for each: what was called, and the path. N is 0 where all is to fit.
// With FULL_DISK_DELAY_MS each of these writes takes so many milliseconds more.
// The standard streams do not count: they are of whoever started the process.
// C streams write past the symbol `write`. `fwrite` therefore counts by itself.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int full = -1;  // the descriptor for which nothing fits any more

enum fate { FITS, HALF_FITS, FAILS };

static int appended(const char *path, const char *text, size_t length) {
    int file = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    syscall(SYS_write, file, text, length);
    int end = syscall(SYS_lseek, file, 0, SEEK_CUR);  // after what was appended, whoever else appends
    syscall(SYS_close, file);
    return end;
}

static enum fate met(const char *call, int file, const char *path) {
    const char *folder = getenv("FULL_DISK_BELOW"), *points = getenv("FULL_DISK_POINTS"), *at = getenv("FULL_DISK_AT"), *delay;
    size_t length = folder ? strlen(folder) : 0;
    if (!folder || !points || !at || strncmp(path, folder, length) || path[length] != '/') return FITS;
    if (file >= 0 && file == full) return FAILS;
    if ((delay = getenv("FULL_DISK_DELAY_MS"))) usleep(1000 * atoi(delay));
    int number = appended(points, ".", 1);
    char log[PATH_MAX + 8], line[PATH_MAX + 64];
    snprintf(log, sizeof log, "%s.log", points);
    appended(log, line, snprintf(line, sizeof line, "%d %s %s\n", number, call, path));
    if (number != atoi(at)) return FITS;
    full = file;
    return HALF_FITS;
}

static enum fate written(const char *call, int file) {
    int saved = errno;
    struct stat status;
    char link[32], path[PATH_MAX] = "";
    enum fate fate = FITS;
    if (file > STDERR_FILENO && fstat(file, &status) == 0 && S_ISREG(status.st_mode)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length > 0) fate = met(call, file, path);
    }
    errno = saved;
    return fate;
}

static int no_room(void) {
    errno = ENOSPC;
    return -1;
}

ssize_t write(int file, const void *data, size_t size) {
    enum fate fate = written("write", file);
    if (fate == FAILS || (fate == HALF_FITS && size < 2)) return no_room();
    return NEXT(write)(file, data, fate == HALF_FITS ? size / 2 : size);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    enum fate fate = written("pwrite", file);
    if (fate == FAILS || (fate == HALF_FITS && size < 2)) return no_room();
    return NEXT(pwrite)(file, data, fate == HALF_FITS ? size / 2 : size, at);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) { return pwrite(file, data, size, at); }

size_t fwrite(const void *data, size_t size, size_t count, FILE *stream) {
    enum fate fate = written("fwrite", fileno(stream));
    if (fate == FITS) return NEXT(fwrite)(data, size, count, stream);
    size_t fitting = fate == HALF_FITS ? NEXT(fwrite)(data, size, count / 2, stream) : 0;
    no_room();
    return fitting;
}

#define ALL_OR_NOTHING(type, name, parameters, ...) \
    type name parameters { return written(#name, file) == FITS ? NEXT(name)(__VA_ARGS__) : no_room(); }

ALL_OR_NOTHING(int, fsync, (int file), file)
ALL_OR_NOTHING(int, fdatasync, (int file), file)
ALL_OR_NOTHING(ssize_t, writev, (int file, const struct iovec *parts, int count), file, parts, count)
ALL_OR_NOTHING(int, fallocate, (int file, int mode, off_t at, off_t size), file, mode, at, size)
ALL_OR_NOTHING(int, fallocate64, (int file, int mode, off64_t at, off64_t size), file, mode, at, size)

// A file that becomes shorter needs no room.
int ftruncate64(int file, off64_t size) {
    struct stat status;
    int shorter = fstat(file, &status) == 0 && size <= status.st_size;
    return shorter || written("ftruncate", file) == FITS ? NEXT(ftruncate64)(file, size) : no_room();
}

int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int posix_fallocate(int file, off_t at, off_t size) {
    return written("posix_fallocate", file) == FITS ? NEXT(posix_fallocate)(file, at, size) : ENOSPC;
}

int close(int file) {
    if (full >= 0 && file == full) full = -1;
    return NEXT(close)(file);
}

int fclose(FILE *stream) {
    if (full >= 0 && fileno(stream) == full) full = -1;
    return NEXT(fclose)(stream);
}
