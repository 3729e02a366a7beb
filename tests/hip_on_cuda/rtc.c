/* hiprtc by NVRTC: the image of a program is a cubin for the device, and options are rewritten. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIPRTC __attribute__((visibility("default"))) int
#define HIPRTC_TEXT __attribute__((visibility("default"))) const char *

enum { SUCCESS, OUT_OF_MEMORY, INVALID_INPUT = 3, INTERNAL_ERROR = 11, OPTION_SIZE = 4096 };

#define COMPILER_FUNCTIONS(F) \
  F(nvrtcVersion, (int *, int *)) \
  F(nvrtcCreateProgram, (void **, const char *, const char *, int, const char *const *, \
                         const char *const *)) \
  F(nvrtcDestroyProgram, (void **)) \
  F(nvrtcCompileProgram, (void *, int, const char *const *)) \
  F(nvrtcGetProgramLogSize, (void *, size_t *)) \
  F(nvrtcGetProgramLog, (void *, char *)) \
  F(nvrtcGetCUBINSize, (void *, size_t *)) \
  F(nvrtcGetCUBIN, (void *, char *)) \
  F(nvrtcAddNameExpression, (void *, const char *)) \
  F(nvrtcGetLoweredName, (void *, const char *, const char **))

#define MEMBER(name, signature) int(*name) signature;
static struct { COMPILER_FUNCTIONS(MEMBER) } compiler;
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
static const char *const folders[] = {
    "", "nvidia/cu13/lib/", "nvidia/cuda_nvrtc/lib/", "lib64/", "lib/",
};
enum { NAMES = sizeof names / sizeof *names, FOLDERS = sizeof folders / sizeof *folders };

/* Look below each path of a list for a library that may be in a site-packages or in a toolkit. */
static void *search(const char *paths) {
  char path[OPTION_SIZE];
  for (; paths && *paths; paths += strcspn(paths, ":"), paths += *paths == ':') {
    int length = (int)strcspn(paths, ":");
    for (int name = 0; name < NAMES; name++)
      for (int folder = 0; folder < FOLDERS; folder++) {
        snprintf(path, sizeof path, "%.*s/%s%s", length, paths, folders[folder], names[name]);
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
      }
  }
  return NULL;
}

static void *find_library(void) {
  void *library = search(getenv("HIP_ON_CUDA_NVRTC"));
  for (int name = 0; name < NAMES && !library; name++)
    library = dlopen(names[name], RTLD_NOW | RTLD_NOLOAD);
  for (int name = 0; name < NAMES && !library; name++)
    library = dlopen(names[name], RTLD_NOW | RTLD_LOCAL);
  return library ? library : search("/usr/local/cuda");
}

static void load(void) {
  void *library = find_library();
  if (!library) return;
#define FIND(name, signature) compiler.name = (int(*) signature)dlsym(library, #name);
  COMPILER_FUNCTIONS(FIND)
}

static int result(int error) { return error < 0 || error > INTERNAL_ERROR ? INTERNAL_ERROR : error; }

#define CALL(name, ...) \
  (pthread_once(&loaded, load), \
   compiler.name ? result(compiler.name(__VA_ARGS__)) : INTERNAL_ERROR)

/* The architecture of the driver's current device, or of its first. */
static void device_architecture(char *option, size_t size) {
  int device = 0, major = 0, minor = 0;
  const char *path = getenv("HIP_ON_CUDA_DRIVER");
  void *driver = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  typedef int (*finder)(const char *, void **, int, uint64_t, int *);
  finder find = driver ? (finder)dlsym(driver, "cuGetProcAddress_v2") : NULL;
  int (*initialize)(unsigned) = NULL, (*current)(int *) = NULL, (*attribute)(int *, int, int) = NULL;
  if (find) {
    find("cuInit", (void **)&initialize, 2000, 0, NULL);
    find("cuCtxGetDevice", (void **)&current, 2000, 0, NULL);
    find("cuDeviceGetAttribute", (void **)&attribute, 2000, 0, NULL);
  }
  if (initialize && attribute && !initialize(0)) {
    if (!current || current(&device)) device = 0;
    attribute(&major, 75, device);
    attribute(&minor, 76, device);
  }
  snprintf(option, size, "--gpu-architecture=sm_%d%d", major ? major : 9, minor);
}

static int begins(const char *text, const char *prefix) {
  return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Return what NVRTC calls an option of clang's, or NULL for one that has no meaning to it. */
static const char *rewrite(const char *option) {
  if (strcmp(option, "-ffp-contract=off") == 0) return "--fmad=false";
  if (strcmp(option, "-ffast-math") == 0) return "--use_fast_math";
  if (strcmp(option, "-g") == 0) return "-lineinfo";
  static const char *const dropped[] = {"-O", "-f", "-W", "-m", "-amdgpu", "--rocm", "--hip"};
  for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
    if (begins(option, dropped[i])) return NULL;
  return option;
}

HIPRTC hiprtcCompileProgram(void *program, int count, const char *const *options) {
  static const char offload[] = "--offload-arch=";
  char architecture[64] = "";
  const char **rewritten = calloc((size_t)count + 1, sizeof *rewritten);
  int kept = 0;
  if (!rewritten) return OUT_OF_MEMORY;
  for (int i = 0; i < count; i++) {
    if (begins(options[i], offload)) {
      /* hipDeviceProp_t of this translation says "sm_90"; a gfx name means the device. */
      const char *target = options[i] + sizeof offload - 1;
      if (begins(target, "sm_"))
        snprintf(architecture, sizeof architecture, "--gpu-architecture=%s", target);
      continue;
    }
    const char *option = rewrite(options[i]);
    if (option) rewritten[kept++] = option;
  }
  if (!*architecture) device_architecture(architecture, sizeof architecture);
  rewritten[kept++] = architecture;
  int error = CALL(nvrtcCompileProgram, program, kept, rewritten);
  free(rewritten);
  return error;
}

HIPRTC hiprtcVersion(int *major, int *minor) { return CALL(nvrtcVersion, major, minor); }

/* What HIP has in its own header and CUDA has not. */
static const char header[] =
    "#line 1 \"hip_on_cuda\"\n"
    "static __device__ __forceinline__ double atomicExch(double *address, double value) {\n"
    "  return __longlong_as_double(atomicExch((unsigned long long *)address,\n"
    "      (unsigned long long)__double_as_longlong(value)));\n"
    "}\n"
    "#define WHOLE(name, type) \\\n"
    "  static __device__ __forceinline__ double name(type x) { return name((double)x); }\n"
    "#define OF_ONE(name) WHOLE(name, int) WHOLE(name, unsigned) WHOLE(name, long) \\\n"
    "  WHOLE(name, unsigned long) WHOLE(name, long long) WHOLE(name, unsigned long long)\n"
    "OF_ONE(cbrt) OF_ONE(ceil) OF_ONE(cos) OF_ONE(exp) OF_ONE(exp2) OF_ONE(floor) OF_ONE(log)\n"
    "OF_ONE(log10) OF_ONE(log2) OF_ONE(sin) OF_ONE(sqrt) OF_ONE(tan) OF_ONE(tanh)\n"
    "#undef OF_ONE\n"
    "#undef WHOLE\n"
    "#line 1 \"%s\"\n%s";

HIPRTC hiprtcCreateProgram(void **program, const char *source, const char *name, int count,
                           const char *const *headers, const char *const *header_names) {
  if (!source) return INVALID_INPUT;
  const char *title = name ? name : "default_program";
  size_t size = sizeof header + strlen(title) + strlen(source);
  char *text = malloc(size);
  if (!text) return OUT_OF_MEMORY;
  snprintf(text, size, header, title, source);
  int error = CALL(nvrtcCreateProgram, program, text, name, count, headers, header_names);
  free(text);
  return error;
}

HIPRTC hiprtcDestroyProgram(void **program) { return CALL(nvrtcDestroyProgram, program); }

HIPRTC hiprtcGetProgramLogSize(void *program, size_t *size) {
  return CALL(nvrtcGetProgramLogSize, program, size);
}

HIPRTC hiprtcGetProgramLog(void *program, char *log) {
  return CALL(nvrtcGetProgramLog, program, log);
}

HIPRTC hiprtcGetCodeSize(void *program, size_t *size) {
  return CALL(nvrtcGetCUBINSize, program, size);
}

HIPRTC hiprtcGetCode(void *program, char *code) { return CALL(nvrtcGetCUBIN, program, code); }

HIPRTC hiprtcAddNameExpression(void *program, const char *expression) {
  return CALL(nvrtcAddNameExpression, program, expression);
}

HIPRTC hiprtcGetLoweredName(void *program, const char *expression, const char **name) {
  return CALL(nvrtcGetLoweredName, program, expression, name);
}

HIPRTC_TEXT hiprtcGetErrorString(int error) {
  static const char *const texts[] = {
      "HIPRTC_SUCCESS",
      "HIPRTC_ERROR_OUT_OF_MEMORY",
      "HIPRTC_ERROR_PROGRAM_CREATION_FAILURE",
      "HIPRTC_ERROR_INVALID_INPUT",
      "HIPRTC_ERROR_INVALID_PROGRAM",
      "HIPRTC_ERROR_INVALID_OPTION",
      "HIPRTC_ERROR_COMPILATION",
      "HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE",
      "HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
      "HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
      "HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
      "HIPRTC_ERROR_INTERNAL_ERROR: no libnvrtc.so.13 or .12 was found, or it failed",
  };
  return error >= 0 && error <= INTERNAL_ERROR ? texts[error] : "HIPRTC_ERROR_UNKNOWN";
}
