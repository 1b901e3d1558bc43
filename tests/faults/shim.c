// Preloaded into a process, makes chosen file operations fail, kill the process, or hang, as a bad disk or
// a power switch would. What fails is the real program on a real file system; only the answer is ours.
//
// CACHECD_FAULTS names a directory with two files:
//   rules   one a line: OPERATION GLOB SKIP COUNT ACTION, read at each call, so they may change meanwhile
//   hits    one 64-bit counter a rule, shared by all processes
// and, if it is there, `trace`, to which every operation under CACHECD_FAULTS_ROOT is appended as
// "PID OPERATION PATH\n" before it is done.
//
// OPERATION: open create read write sync rename link unlink mkdir allocate truncate, or *.
// GLOB: of the absolute path (of the new name, for a rename or a link).
// ACTION: an errno number; `kill` before the operation, `killafter` it; `stop` before it (SIGSTOP).
// A rule applies to the calls SKIP+1 .. SKIP+COUNT that it matches; COUNT 0 means all from SKIP+1 on.
//
// Not seen: io through a mapping, and raw system calls. SQLite, CPython and the core go through libc.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kRules = 64 };
enum { kPass, kFailed, kKillAfter };

static const char* root;
static char rules_path[PATH_MAX], trace_path[PATH_MAX];
static _Atomic uint64_t* hits;

__attribute__((constructor)) static void start(void) {
  const char* directory = getenv("CACHECD_FAULTS");
  root = getenv("CACHECD_FAULTS_ROOT");
  if (!directory || !root) return;
  snprintf(rules_path, sizeof rules_path, "%s/rules", directory);
  snprintf(trace_path, sizeof trace_path, "%s/trace", directory);
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/hits", directory);
  int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* at = mmap(NULL, kRules * sizeof *hits, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (at != MAP_FAILED) hits = at;
}

static void trace(const char* operation, const char* path) {
  int fd = (int)syscall(SYS_openat, AT_FDCWD, trace_path, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) return;
  char line[PATH_MAX + 64];
  int length = snprintf(line, sizeof line, "%d %s %s\n", getpid(), operation, path);
  syscall(SYS_write, fd, line, (size_t)length);
  syscall(SYS_close, fd);
}

// What is to become of this operation; errno is set if it is kFailed.
static int judge(const char* operation, const char* path) {
  if (!hits || strncmp(path, root, strlen(root)) != 0) return kPass;
  int before = errno;
  trace(operation, path);
  char text[16384];
  int fd = (int)syscall(SYS_openat, AT_FDCWD, rules_path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return kPass;
  ssize_t length = syscall(SYS_read, fd, text, sizeof text - 1);
  syscall(SYS_close, fd);
  text[length > 0 ? length : 0] = 0;
  int verdict = kPass, number = 0;
  char* rest = NULL;
  for (char* line = strtok_r(text, "\n", &rest); line && number < kRules;
       line = strtok_r(NULL, "\n", &rest), number++) {
    char wanted[16], glob[PATH_MAX], action[16];
    unsigned long long skip, count;
    if (sscanf(line, "%15s %4095s %llu %llu %15s", wanted, glob, &skip, &count, action) != 5) continue;
    if (strcmp(wanted, "*") != 0 && strcmp(wanted, operation) != 0) continue;
    if (fnmatch(glob, path, 0) != 0) continue;
    uint64_t hit = atomic_fetch_add(&hits[number], 1);
    if (hit < skip || (count && hit >= skip + count) || verdict != kPass) continue;
    if (strcmp(action, "kill") == 0) syscall(SYS_kill, getpid(), SIGKILL);
    if (strcmp(action, "stop") == 0) syscall(SYS_kill, getpid(), SIGSTOP);
    if (strcmp(action, "killafter") == 0) verdict = kKillAfter;
    if (atoi(action) > 0) {
      before = atoi(action);
      verdict = kFailed;
    }
  }
  errno = before;
  return verdict;
}

static int judge_at(const char* operation, int directory, const char* name) {
  if (!hits) return kPass;
  char path[PATH_MAX + NAME_MAX], link[64];
  if (name[0] == '/') return judge(operation, name);
  ssize_t length;
  if (directory == AT_FDCWD) {
    length = getcwd(path, PATH_MAX) ? (ssize_t)strlen(path) : -1;
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    length = readlink(link, path, PATH_MAX - 1);
  }
  if (length < 0) return kPass;
  snprintf(path + length, sizeof path - (size_t)length, "/%s", name);
  return judge(operation, path);
}

static int judge_descriptor(const char* operation, int fd) {
  if (!hits) return kPass;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0 || path[0] != '/') return kPass;
  path[length] = 0;
  char* gone = strstr(path, " (deleted)");
  if (gone) *gone = 0;
  return judge(operation, path);
}

static void killed_after(int verdict) {
  if (verdict == kKillAfter) syscall(SYS_kill, getpid(), SIGKILL);
}

#define REAL(name, type, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define WRAP(type, name, parameters, arguments, types, verdict_of) \
  type name parameters {                                             \
    REAL(name, type, types);                                         \
    int verdict = verdict_of;                                        \
    if (verdict == kFailed) return -1;                               \
    type result = real arguments;                                    \
    killed_after(verdict);                                           \
    return result;                                                   \
  }
#define TYPES(...) __VA_ARGS__

WRAP(ssize_t, read, (int fd, void* to, size_t n), (fd, to, n), TYPES(int, void*, size_t), judge_descriptor("read", fd))
WRAP(ssize_t, pread, (int fd, void* to, size_t n, off_t at), (fd, to, n, at), TYPES(int, void*, size_t, off_t), judge_descriptor("read", fd))
WRAP(ssize_t, pread64, (int fd, void* to, size_t n, off64_t at), (fd, to, n, at), TYPES(int, void*, size_t, off64_t), judge_descriptor("read", fd))
WRAP(ssize_t, write, (int fd, const void* from, size_t n), (fd, from, n), TYPES(int, const void*, size_t), judge_descriptor("write", fd))
WRAP(ssize_t, pwrite, (int fd, const void* from, size_t n, off_t at), (fd, from, n, at), TYPES(int, const void*, size_t, off_t), judge_descriptor("write", fd))
WRAP(ssize_t, pwrite64, (int fd, const void* from, size_t n, off64_t at), (fd, from, n, at), TYPES(int, const void*, size_t, off64_t), judge_descriptor("write", fd))
WRAP(ssize_t, writev, (int fd, const struct iovec* v, int n), (fd, v, n), TYPES(int, const struct iovec*, int), judge_descriptor("write", fd))
WRAP(int, fsync, (int fd), (fd), TYPES(int), judge_descriptor("sync", fd))
WRAP(int, fdatasync, (int fd), (fd), TYPES(int), judge_descriptor("sync", fd))
WRAP(int, ftruncate, (int fd, off_t n), (fd, n), TYPES(int, off_t), judge_descriptor("truncate", fd))
WRAP(int, ftruncate64, (int fd, off64_t n), (fd, n), TYPES(int, off64_t), judge_descriptor("truncate", fd))
WRAP(int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n), TYPES(int, int, off_t, off_t), judge_descriptor("allocate", fd))
WRAP(int, fallocate64, (int fd, int mode, off64_t at, off64_t n), (fd, mode, at, n), TYPES(int, int, off64_t, off64_t), judge_descriptor("allocate", fd))
WRAP(int, rename, (const char* from, const char* to), (from, to), TYPES(const char*, const char*), judge_at("rename", AT_FDCWD, to))
WRAP(int, renameat, (int d, const char* from, int e, const char* to), (d, from, e, to), TYPES(int, const char*, int, const char*), judge_at("rename", e, to))
WRAP(int, link, (const char* from, const char* to), (from, to), TYPES(const char*, const char*), judge_at("link", AT_FDCWD, to))
WRAP(int, linkat, (int d, const char* from, int e, const char* to, int flags), (d, from, e, to, flags), TYPES(int, const char*, int, const char*, int), judge_at("link", e, to))
WRAP(int, unlink, (const char* path), (path), TYPES(const char*), judge_at("unlink", AT_FDCWD, path))
WRAP(int, unlinkat, (int d, const char* path, int flags), (d, path, flags), TYPES(int, const char*, int), judge_at("unlink", d, path))
WRAP(int, mkdir, (const char* path, mode_t mode), (path, mode), TYPES(const char*, mode_t), judge_at("mkdir", AT_FDCWD, path))
WRAP(int, mkdirat, (int d, const char* path, mode_t mode), (d, path, mode), TYPES(int, const char*, mode_t), judge_at("mkdir", d, path))

// These two give the errno instead of setting it.
#define WRAP_ALLOCATE(name, offset)                         \
  int name(int fd, offset at, offset n) {                   \
    REAL(name, int, TYPES(int, offset, offset));            \
    int verdict = judge_descriptor("allocate", fd);         \
    if (verdict == kFailed) return errno;                   \
    int result = real(fd, at, n);                           \
    killed_after(verdict);                                  \
    return result;                                          \
  }
WRAP_ALLOCATE(posix_fallocate, off_t)
WRAP_ALLOCATE(posix_fallocate64, off64_t)

// What has a mode only if it may create: TYPES is what comes before it, `directory` what the path is below.
#define WRAP_OPEN(name, parameters, arguments, types, directory)                     \
  int name(parameters, ...) {                                                        \
    REAL(name, int, types, mode_t);                                                  \
    mode_t mode = 0;                                                                 \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                           \
      va_list list;                                                                  \
      va_start(list, flags);                                                         \
      mode = va_arg(list, mode_t);                                                   \
      va_end(list);                                                                  \
    }                                                                                \
    int verdict = judge_at(flags & O_CREAT ? "create" : "open", directory, path);    \
    if (verdict == kFailed) return -1;                                               \
    int result = real(arguments, mode);                                              \
    killed_after(verdict);                                                           \
    return result;                                                                   \
  }
#define WRAP_OPEN_PATH(name) \
  WRAP_OPEN(name, TYPES(const char* path, int flags), TYPES(path, flags), TYPES(const char*, int), AT_FDCWD)
#define WRAP_OPEN_BELOW(name)                                                                       \
  WRAP_OPEN(name, TYPES(int directory, const char* path, int flags), TYPES(directory, path, flags), \
            TYPES(int, const char*, int), directory)
WRAP_OPEN_PATH(open)
WRAP_OPEN_PATH(open64)
WRAP_OPEN_BELOW(openat)
WRAP_OPEN_BELOW(openat64)
