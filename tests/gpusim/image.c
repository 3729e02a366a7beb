/* Images of the cpu backend's toolchain as a driver's modules: loading, looking up, running.
 *
 * An image is a shared object that exports a record for each kernel (hal_cpu's image.h). It is
 * written to memory that has a descriptor for a name, and loaded from there; each load is an object
 * of its own. Blocks run one after another on the calling thread; those that meet barriers have a
 * stack for each thread of the block. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "image.h"

#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <setjmp.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../../hal_cpu/src/hal_cpu/lanes.h"
#pragma GCC diagnostic pop

#define PREFIX "hal_kernel_"
#define ASSERTED 710 /* what a failed assertion makes of a run */
#define FAILED 719   /* and a barrier that not all threads come to */

struct sim_function {
  struct sim_module *module;
  const struct hal_kernel *kernel;
  unsigned max_threads, static_shared;
};

struct symbol {
  const char *name;
  size_t size;
  unsigned char type;
  int exported;
};

struct sim_module {
  char *bytes; /* the image, for its symbols' names */
  size_t size;
  int file;
  void *library;
  struct symbol *symbols;
  unsigned symbol_count;
  struct sim_function *functions;
  unsigned function_count;
};

/* Loading */

static void say(char *why, size_t size, const char *what) {
  if (size) snprintf(why, size, "%s", what);
}

/* Say what an image is by its first bytes. */
static int recognise(const unsigned char *head, size_t room, char *why, size_t why_size) {
  static const char *const texts[] = {"//", ".version", "__CLANG_OFFLOAD_BUNDLE__", "\x50\xed\x55\xba"};
  for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++) {
    size_t length = strlen(texts[i]);
    if (room >= length && !memcmp(head, texts[i], length)) {
      say(why, why_size, "text or a bundle for a GPU");
      return SIM_IMAGE_FOREIGN;
    }
  }
  if (room < sizeof(Elf64_Ehdr) || memcmp(head, ELFMAG, SELFMAG)) {
    say(why, why_size, "no ELF file");
    return SIM_IMAGE_INVALID;
  }
  Elf64_Ehdr header;
  memcpy(&header, head, sizeof header);
#if defined(__aarch64__)
  const int here = EM_AARCH64;
#else
  const int here = EM_X86_64;
#endif
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_machine != here) {
    say(why, why_size, "an ELF file for another machine");
    return SIM_IMAGE_FOREIGN;
  }
  if (header.e_type != ET_DYN || !header.e_shoff || header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > (1ull << 32)) {
    say(why, why_size, "an ELF file that is no shared object");
    return SIM_IMAGE_INVALID;
  }
  return SIM_IMAGE_OK;
}

struct taking {
  const unsigned char *from;
  size_t size;
  char *copy;
  int status;
  char *why;
  size_t why_size;
};

/* Copy an image, whose size its header tells. Bytes that are not there end it by a fault. */
static void take(void *argument) {
  struct taking *it = argument;
  unsigned char head[sizeof(Elf64_Ehdr)];
  size_t room = 0;
  /* Text may be shorter than a header. */
  while (room < sizeof head) {
    head[room] = it->from[room];
    room++;
    if (room > 3 && memcmp(head, ELFMAG, SELFMAG) && !head[room - 1]) break;
  }
  it->status = recognise(head, room, it->why, it->why_size);
  if (it->status) return;
  Elf64_Ehdr header;
  memcpy(&header, head, sizeof header);
  it->size = header.e_shoff + (size_t)header.e_shnum * sizeof(Elf64_Shdr);
  it->copy = malloc(it->size);
  memcpy(it->copy, it->from, it->size);
}

/* Collect the symbols that an image defines; returns -1 if its tables are damaged. */
static int read_symbols(struct sim_module *module) {
  const char *bytes = module->bytes;
  Elf64_Ehdr header;
  memcpy(&header, bytes, sizeof header);
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(bytes + header.e_shoff);
  for (unsigned s = 0; s < header.e_shnum; s++) {
    if (sections[s].sh_type != SHT_SYMTAB && sections[s].sh_type != SHT_DYNSYM) continue;
    if (sections[s].sh_link >= header.e_shnum) return -1;
    const Elf64_Shdr *names = &sections[sections[s].sh_link];
    if (sections[s].sh_offset + sections[s].sh_size > module->size || names->sh_offset + names->sh_size > module->size) return -1;
    const Elf64_Sym *table = (const Elf64_Sym *)(bytes + sections[s].sh_offset);
    size_t count = sections[s].sh_size / sizeof *table;
    module->symbols = realloc(module->symbols, (module->symbol_count + count) * sizeof *module->symbols);
    for (size_t i = 0; i < count; i++) {
      if (table[i].st_shndx == SHN_UNDEF || !table[i].st_name || table[i].st_name >= names->sh_size) continue;
      module->symbols[module->symbol_count++] = (struct symbol){
          .name = bytes + names->sh_offset + table[i].st_name,
          .size = table[i].st_size,
          .type = ELF64_ST_TYPE(table[i].st_info),
          .exported = sections[s].sh_type == SHT_DYNSYM,
      };
    }
  }
  return 0;
}

/* Bytes of shared memory that a kernel declares inside itself: what is local to threads there. */
static unsigned own_shared(const struct sim_module *module, const char *kernel) {
  char mark[512];
  int length = snprintf(mark, sizeof mark, "_ZZ%zu%s", strlen(kernel), kernel);
  size_t total = 0;
  for (unsigned i = 0; i < module->symbol_count; i++) {
    const struct symbol *symbol = &module->symbols[i];
    if (symbol->type != STT_TLS || strncmp(symbol->name, mark, (size_t)length)) continue;
    int seen = 0; /* in both tables */
    for (unsigned j = 0; j < i && !seen; j++)
      seen = module->symbols[j].type == STT_TLS && !strcmp(module->symbols[j].name, symbol->name);
    if (!seen) total += symbol->size;
  }
  return (unsigned)total;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const struct sim_function *)a)->kernel->name, ((const struct sim_function *)b)->kernel->name);
}

static int find_kernels(struct sim_module *module) {
  module->functions = calloc(module->symbol_count + 1, sizeof *module->functions);
  for (unsigned i = 0; i < module->symbol_count; i++) {
    const struct symbol *symbol = &module->symbols[i];
    if (!symbol->exported || symbol->type != STT_OBJECT || strncmp(symbol->name, PREFIX, strlen(PREFIX))) continue;
    const struct hal_kernel *kernel = dlsym(module->library, symbol->name);
    if (!kernel || kernel->abi != HAL_IMAGE_ABI || kernel->argument_bytes > HAL_MAX_ARGUMENT_BYTES) return -1;
    char name[512];
    snprintf(name, sizeof name, "gpusim_bound_%s", kernel->name);
    const unsigned *bound = dlsym(module->library, name);
    struct sim_function *function = &module->functions[module->function_count++];
    function->module = module;
    function->kernel = kernel;
    function->max_threads = bound && *bound && *bound < kernel->max_threads ? *bound : kernel->max_threads;
    function->static_shared = kernel->static_shared_memory ? kernel->static_shared_memory : own_shared(module, kernel->name);
  }
  qsort(module->functions, module->function_count, sizeof *module->functions, by_name);
  return 0;
}

static void on_assert(const char *condition, const char *file, unsigned line, const char *function);

static int load(struct sim_module *module, char *why, size_t why_size) {
  char path[64];
  module->file = memfd_create("gpusim-image", MFD_CLOEXEC);
  if (module->file < 0) return -1;
  for (size_t done = 0; done < module->size;) {
    ssize_t some = write(module->file, module->bytes + done, module->size - done);
    if (some <= 0) return -1;
    done += (size_t)some;
  }
  snprintf(path, sizeof path, "/proc/self/fd/%d", module->file);
  module->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!module->library) {
    say(why, why_size, dlerror());
    return -1;
  }
  void **hook = dlsym(module->library, "gpusim_assert");
  if (hook) *hook = (void *)on_assert;
  return read_symbols(module) || find_kernels(module) ? -1 : 0;
}

void sim_image_unload(struct sim_module *module) {
  if (module->library) dlclose(module->library);
  /* The loader tells objects by their names: the number must not be another's before this. */
  if (module->file >= 0) close(module->file);
  free(module->functions);
  free(module->symbols);
  free(module->bytes);
  free(module);
}

struct sim_module *sim_image_load(const void *bytes, int *status, char *why, size_t why_size) {
  struct taking it = {.from = bytes, .why = why, .why_size = why_size};
  say(why, why_size, "");
  if (sim_guard(take, &it, NULL)) {
    free(it.copy);
    it.status = SIM_IMAGE_INVALID;
    say(why, why_size, "the image ends where no memory is");
  }
  *status = it.status;
  if (it.status) return NULL;
  struct sim_module *module = calloc(1, sizeof *module);
  module->bytes = it.copy;
  module->size = it.size;
  module->file = -1;
  if (load(module, why, why_size)) {
    sim_image_unload(module);
    if (why_size && !why[0]) say(why, why_size, "a shared object whose kernels are of another version, or damaged");
    *status = SIM_IMAGE_INVALID;
    return NULL;
  }
  return module;
}

/* Looking up */

struct sim_function *sim_image_function(struct sim_module *module, const char *name) {
  for (unsigned i = 0; i < module->function_count; i++)
    if (!strcmp(module->functions[i].kernel->name, name)) return &module->functions[i];
  return NULL;
}

unsigned sim_image_function_count(struct sim_module *module) { return module->function_count; }

struct sim_function *sim_image_function_at(struct sim_module *module, unsigned index) {
  return index < module->function_count ? &module->functions[index] : NULL;
}

int sim_image_global(struct sim_module *module, const char *name, void **address, size_t *size) {
  if (!strncmp(name, PREFIX, strlen(PREFIX)) || !strncmp(name, "gpusim_", 7)) return -1;
  for (unsigned i = 0; i < module->symbol_count; i++) {
    const struct symbol *symbol = &module->symbols[i];
    if (!symbol->exported || symbol->type != STT_OBJECT || strcmp(symbol->name, name)) continue;
    *address = dlsym(module->library, name);
    *size = symbol->size;
    return *address ? 0 : -1;
  }
  return -1;
}

int sim_image_architecture(const struct sim_module *module) {
  const int *architecture = dlsym(module->library, "gpusim_architecture");
  return architecture ? *architecture : 0;
}

const char *sim_function_name(const struct sim_function *function) { return function->kernel->name; }
unsigned sim_function_max_threads(const struct sim_function *function) { return function->max_threads; }
unsigned sim_function_static_shared(const struct sim_function *function) { return function->static_shared; }
unsigned sim_function_parameter_count(const struct sim_function *function) { return function->kernel->parameter_count; }
size_t sim_function_argument_bytes(const struct sim_function *function) { return function->kernel->argument_bytes; }

void sim_function_parameter(const struct sim_function *function, unsigned index, size_t *offset, size_t *size) {
  *offset = function->kernel->offsets[index];
  *size = function->kernel->sizes[index];
}

/* Running */

struct runner {
  struct thread_state state; /* must come first: kernels get its address */
  sigjmp_buf asserted;
};

static pthread_key_t runner_key;
static pthread_once_t runner_once = PTHREAD_ONCE_INIT;
static __thread struct runner *runner;

static void end_runner(void *argument) {
  struct runner *it = argument;
  free_fibers(&it->state);
  free(it->state.worker.shared);
  free(it);
  runner = NULL;
}

static void make_key(void) { pthread_key_create(&runner_key, end_runner); }

static struct runner *my_runner(void) {
  if (runner) return runner;
  pthread_once(&runner_once, make_key);
  runner = calloc(1, sizeof *runner);
  start_worker(&runner->state.worker);
  pthread_setspecific(runner_key, runner);
  return runner;
}

static void on_assert(const char *condition, const char *file, unsigned line, const char *function) {
  fprintf(stderr, "%s:%u: %s: Assertion `%s` failed.\n", file, line, function, condition);
  siglongjmp(runner->asserted, ASSERTED);
}

static void diverged(struct hal_worker *worker, const struct hal_place *one, const struct hal_place *other) {
  (void)worker, (void)other;
  fprintf(stderr, "%s:%u: not all threads of the block come to this barrier\n", one->file, one->line);
  siglongjmp(runner->asserted, FAILED);
}

static void misled(struct hal_worker *worker, const struct hal_meeting *meeting, const char *what) {
  (void)worker;
  fprintf(stderr, "%s:%u: %s(): %s\n", meeting->place->file, meeting->place->line, meeting->name, what);
  siglongjmp(runner->asserted, FAILED);
}

int sim_kernel_run(const struct sim_function *function, const unsigned grid[3], const unsigned block[3],
                   unsigned shared, const void *arguments) {
  const struct hal_kernel *kernel = function->kernel;
  struct runner *me = my_runner();
  struct hal_launch launch = {.shared_memory = shared, .arguments = arguments};
  memcpy(launch.grid, grid, sizeof launch.grid);
  memcpy(launch.block, block, sizeof launch.block);
  need_shared(&me->state, shared ? shared : 1);
  me->state.current = NULL;
  /* A fault ends the call from outside; only an assertion or a barrier comes back here. */
  int status = sigsetjmp(me->asserted, 0);
  if (!status) kernel->run(&launch, &me->state.worker, 0, (unsigned long long)grid[0] * grid[1] * grid[2]);
  if (kernel->flags & HAL_KERNEL_PRINTS) fflush(stdout);
  return status;
}
