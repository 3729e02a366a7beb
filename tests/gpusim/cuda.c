/* The CUDA face: errors, and the table behind cuGetProcAddress. */
#include <stdio.h>
#include <string.h>

#include "cuda.h"

struct error {
  int code;
  const char *name, *text;
};
static const struct error errors[] = {
#define ERROR(code_, cuda_, hip_, text_) {code_, #cuda_, text_},
#include "both_errors.h"
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device busy or unavailable"},
    {215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "limit is not supported"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX compilation failed"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
};

static int look_up(int code, const char **out, bool name) {
  GIVEN(out);
  *out = NULL;
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) *out = name ? errors[i].name : errors[i].text;
  return *out ? SIM_OK : SIM_INVALID_VALUE;
}

API cuGetErrorName(int code, const char **name) { return look_up(code, name, true); }
API cuGetErrorString(int code, const char **text) { return look_up(code, text, false); }

/* Names with a newer ABI that is not here: they are not found from that version on. */
static const struct {
  const char *name;
  int from;
} newer[] = {{"cuLaunchHostFunc", 13020}};

API cuGetProcAddress_v2(const char *name, void **symbol, int version, uint64_t flags, int *result) {
  (void)flags;
  if (!name || !symbol) return SIM_INVALID_VALUE;
  int best = -1, known = 0;
  *symbol = NULL;
  for (size_t i = 0; i < cu_line_count; i++) {
    if (strcmp(name, cu_lines[i].name)) continue;
    known = 1;
    if (cu_lines[i].version > version || cu_lines[i].version < best) continue;
    best = cu_lines[i].version;
    memcpy(symbol, &cu_lines[i].symbol, sizeof *symbol);
  }
  for (size_t i = 0; i < sizeof newer / sizeof *newer; i++)
    if (!strcmp(name, newer[i].name) && version >= newer[i].from) *symbol = NULL;
  if (result) *result = *symbol ? 0 : known ? 2 : 1; /* found, too old a version, no such symbol */
  return *symbol ? SIM_OK : SIM_NOT_FOUND;
}
