/* A run-time compiler's face: NVRTC's names, or with GPUSIM_HIPRTC those of HIP.
 *
 * A program is text, headers and options. Compiling writes them to a folder and starts
 *
 *     $GPUSIM_PYTHON $GPUSIM_COMPILER FOLDER
 *
 * (compile.py), which leaves `image` or not, and `log`. What was compiled before is taken from
 * the folder $GPUSIM_RTC_CACHE: the key covers all that goes in, and $GPUSIM_RTC_STAMP, which
 * stands for the compiler itself. Both code in assembly and machine code are the image. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef GPUSIM_HIPRTC
#define RTC(name) hiprtc##name
#define RTC_CODE(suffix) hiprtcGetCode##suffix
#define PREFIX "HIPRTC_"
#define ARCHITECTURE_MARK "gfx"
#else
#define RTC(name) nvrtc##name
#define RTC_CODE(suffix) nvrtcGetCUBIN##suffix
#define PREFIX "NVRTC_"
#define ARCHITECTURE_MARK "sm_"
#endif
#define EXPORT __attribute__((visibility("default")))

enum {
  SUCCESS = 0,
  INVALID_INPUT = 3,
  INVALID_PROGRAM = 4,
  INVALID_OPTION = 5,
  COMPILATION = 6,
  INTERNAL_ERROR = 11,
};
static const char *const names[] = {
    PREFIX "SUCCESS",
    PREFIX "ERROR_OUT_OF_MEMORY",
    PREFIX "ERROR_PROGRAM_CREATION_FAILURE",
    PREFIX "ERROR_INVALID_INPUT",
    PREFIX "ERROR_INVALID_PROGRAM",
    PREFIX "ERROR_INVALID_OPTION",
    PREFIX "ERROR_COMPILATION",
    PREFIX "ERROR_BUILTIN_OPERATION_FAILURE",
    PREFIX "ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
    PREFIX "ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
    PREFIX "ERROR_NAME_EXPRESSION_NOT_VALID",
    PREFIX "ERROR_INTERNAL_ERROR",
};

struct bytes {
  char *data;
  size_t size;
};

#define MAGIC 0x67707274u
struct program {
  unsigned magic;
  int is_virtual;     /* for an architecture that has no machine code */
  struct bytes input;       /* text, name and headers, each behind its length */
  struct bytes image, log;
};

/* Files */

static void append(struct bytes *to, const void *data, size_t size) {
  to->data = realloc(to->data, to->size + size + 1);
  memcpy(to->data + to->size, data, size);
  to->size += size;
  to->data[to->size] = 0;
}

static void append_text(struct bytes *to, const char *text) {
  uint64_t length = strlen(text);
  append(to, &length, sizeof length);
  append(to, text, length);
}

static int read_file(const char *folder, const char *name, struct bytes *out) {
  char path[4096], part[65536];
  size_t some;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rbe");
  if (!file) return -1;
  *out = (struct bytes){0};
  append(out, "", 0);
  while ((some = fread(part, 1, sizeof part, file)) > 0) append(out, part, some);
  fclose(file);
  return 0;
}

static int write_file(const char *folder, const char *name, const struct bytes *what) {
  char path[4096], work[4200];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  snprintf(work, sizeof work, "%s.%d.%lx", path, getpid(), (unsigned long)pthread_self());
  FILE *file = fopen(work, "wbe");
  if (!file) return -1;
  size_t done = fwrite(what->data, 1, what->size, file);
  if (fclose(file) || done != what->size || rename(work, path)) {
    unlink(work);
    return -1;
  }
  return 0;
}

static int remove_entry(const char *path, const struct stat *about, int flag, struct FTW *where) {
  (void)about, (void)flag, (void)where;
  return remove(path);
}

/* The cache */

static void digest(const struct bytes *what, char *name) {
  uint64_t hash[2] = {0xcbf29ce484222325u, 0x84222325cbf29ce4u};
  for (size_t i = 0; i < what->size; i++) {
    hash[0] = (hash[0] ^ (unsigned char)what->data[i]) * 0x100000001b3u;
    hash[1] = (hash[1] + (unsigned char)what->data[i]) * 0x9e3779b97f4a7c15u;
    hash[1] ^= hash[1] >> 29;
  }
  snprintf(name, 64, "%016llx%016llx", (unsigned long long)hash[0], (unsigned long long)hash[1]);
}

/* Compiling */

extern char **environ;

/* The environment of the compiler: this one without what loads this library. */
static char **clean_environment(void) {
  size_t count = 0, kept = 0;
  while (environ[count]) count++;
  char **list = calloc(count + 1, sizeof *list);
  for (size_t i = 0; i < count; i++)
    if (strncmp(environ[i], "LD_PRELOAD=", 11) && strncmp(environ[i], "LD_LIBRARY_PATH=", 16)) list[kept++] = environ[i];
  return list;
}

static int start_compiler(const char *folder) {
  const char *python = getenv("GPUSIM_PYTHON"), *script = getenv("GPUSIM_COMPILER");
  if (!python || !script) {
    fprintf(stderr, "gpusim: GPUSIM_PYTHON and GPUSIM_COMPILER are not set\n");
    return -1;
  }
  char *arguments[] = {(char *)python, (char *)script, (char *)folder, NULL};
  char **environment = clean_environment();
  pid_t child;
  int status = posix_spawn(&child, python, NULL, NULL, arguments, environment);
  free(environment);
  if (status) return -1;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Compile what `all` holds; the result, image and log go into the program. */
static int compile(struct program *program, const struct bytes *all) {
  char folder[4096], key[64], name[80];
  const char *base = getenv("TMPDIR"), *cache = getenv("GPUSIM_RTC_CACHE");
  digest(all, key);
  snprintf(name, sizeof name, "%s.image", key);
  if (cache && !read_file(cache, name, &program->image)) {
    append(&program->log, "", 0);
    return SUCCESS;
  }
  snprintf(folder, sizeof folder, "%s/gpusim-rtc-XXXXXX", base && *base ? base : "/tmp");
  if (!mkdtemp(folder)) return INTERNAL_ERROR;
  int status = write_file(folder, "request", all) ? INTERNAL_ERROR : start_compiler(folder);
  read_file(folder, "log", &program->log);
  if (status == SUCCESS && read_file(folder, "image", &program->image)) status = INTERNAL_ERROR;
  if (status == SUCCESS && cache) write_file(cache, name, &program->image);
  nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
  return status == SUCCESS || status == COMPILATION || status == INVALID_OPTION ? status : INTERNAL_ERROR;
}

/* The face */

EXPORT const char *RTC(GetErrorString)(int code) {
  int known = code >= 0 && code < (int)(sizeof names / sizeof *names);
  return known ? names[code] : PREFIX "ERROR unknown";
}

EXPORT int RTC(Version)(int *major, int *minor) {
  if (!major || !minor) return INVALID_INPUT;
  *major = 13;
  *minor = 0;
  return SUCCESS;
}

EXPORT int RTC(CreateProgram)(struct program **out, const char *text, const char *name, int count, const char *const *headers,
                              const char *const *include_names) {
  if (!out || !text || count < 0 || (count && (!headers || !include_names))) return INVALID_INPUT;
  struct program *program = calloc(1, sizeof *program);
  program->magic = MAGIC;
  append_text(&program->input, text);
  append_text(&program->input, name && *name ? name : "default_program");
  uint64_t number = (uint64_t)count;
  append(&program->input, &number, sizeof number);
  for (int i = 0; i < count; i++) {
    append_text(&program->input, include_names[i]);
    append_text(&program->input, headers[i]);
  }
  *out = program;
  return SUCCESS;
}

static int check(const struct program *program) { return program && program->magic == MAGIC ? SUCCESS : INVALID_PROGRAM; }

EXPORT int RTC(DestroyProgram)(struct program **program) {
  if (!program || check(*program)) return INVALID_PROGRAM;
  (*program)->magic = 0;
  free((*program)->input.data);
  free((*program)->image.data);
  free((*program)->log.data);
  free(*program);
  *program = NULL;
  return SUCCESS;
}

static void forget(struct bytes *bytes) {
  free(bytes->data);
  *bytes = (struct bytes){0};
}

EXPORT int RTC(CompileProgram)(struct program *program, int count, const char *const *options) {
  if (check(program)) return INVALID_PROGRAM;
  if (count < 0 || (count && !options)) return INVALID_INPUT;
  struct bytes all = {0};
  const char *stamp = getenv("GPUSIM_RTC_STAMP");
  append_text(&all, stamp ? stamp : "");
  append(&all, program->input.data, program->input.size);
  uint64_t number = (uint64_t)count;
  append(&all, &number, sizeof number);
  program->is_virtual = 1;
  for (int i = 0; i < count; i++) {
    append_text(&all, options[i]);
    if (strstr(options[i], ARCHITECTURE_MARK)) program->is_virtual = 0;
  }
  forget(&program->image);
  forget(&program->log);
  int status = compile(program, &all);
  free(all.data);
  return status;
}

static int give_size(const struct program *program, size_t size, size_t *out) {
  if (check(program)) return INVALID_PROGRAM;
  if (!out) return INVALID_INPUT;
  *out = size;
  return SUCCESS;
}

static int give(const struct program *program, const struct bytes *what, char *out) {
  if (check(program)) return INVALID_PROGRAM;
  if (!out) return INVALID_INPUT;
  if (what->size) memcpy(out, what->data, what->size);
  return SUCCESS;
}

EXPORT int RTC(GetProgramLogSize)(const struct program *program, size_t *size) {
  return give_size(program, check(program) ? 0 : program->log.size + 1, size);
}
EXPORT int RTC(GetProgramLog)(const struct program *program, char *log) {
  int status = give(program, &program->log, log);
  if (!status) log[program->log.size] = 0;
  return status;
}
EXPORT int RTC_CODE(Size)(const struct program *program, size_t *size) {
  return give_size(program, check(program) || program->is_virtual ? 0 : program->image.size, size);
}
EXPORT int RTC_CODE()(const struct program *program, char *code) {
  return program && program->is_virtual ? INVALID_PROGRAM : give(program, &program->image, code);
}

#ifndef GPUSIM_HIPRTC
static const int architectures[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
#define ARCHITECTURES (int)(sizeof architectures / sizeof *architectures)

EXPORT int nvrtcGetNumSupportedArchs(int *count) {
  if (!count) return INVALID_INPUT;
  *count = ARCHITECTURES;
  return SUCCESS;
}
EXPORT int nvrtcGetSupportedArchs(int *list) {
  if (!list) return INVALID_INPUT;
  memcpy(list, architectures, sizeof architectures);
  return SUCCESS;
}
EXPORT int nvrtcGetPTXSize(const struct program *program, size_t *size) {
  return give_size(program, check(program) ? 0 : program->image.size, size);
}
EXPORT int nvrtcGetPTX(const struct program *program, char *code) { return give(program, &program->image, code); }
#endif
