/* The data of operations in memory that all ranks map: their sheets (meeting.c).
 *
 * What all reduce, or more than one take from another, goes by as many steps as it takes: while a rank writes one to its
 * sheet, the others may still read the one before in its other sheet. Where one rank reads what another has written
 * (all_to_all, a broadcast to one), more than a sheet holds takes no longer in messages, which copy once: it goes by
 * those (moves.c). */
#include "meeting.h"

#include <string.h>

/* Bytes that ranks reduce by parts, at least: less takes longer than if each rank reduces all. */
enum { WORTH_PARTS = 8192 };

bool goes_by_sheets(const struct meeting *self, const struct plan *plan) {
  if (!plan->stride && (plan->action == FOLD || (plan->action == TAKE && self->size > 2))) return true;
  return (plan->stride ? (size_t)self->size * plan->stride : plan->piece) <= self->most;
}

/* Bytes of a piece that the step shows. */
static size_t step_of(const struct meeting *self, const struct run *run) { return length_of(run->plan->piece, run->begin, self->most); }

void fill_sheet(const struct meeting *self, const struct run *run) {
  const struct plan *plan = run->plan;
  size_t bytes = plan->stride ? (size_t)self->size * plan->stride : step_of(self, run);
  bool gives = plan->action != TAKE || plan->root == self->rank;
  /* What this rank keeps, too, since the source may be the target. */
  if (bytes && gives) memcpy(sheet_of(self, self->rank)->data, run->source + run->begin, bytes);
}

/* Reduce this rank's part of what is shown, in its own sheet, where no other rank reads that part. In this rank's own
 * order: nobody else makes this part, so all get the same sum. */
static bool fold_part(struct meeting *self, const struct run *run, size_t shown) {
  size_t part = part_of(shown, (size_t)self->size), mine = (size_t)self->rank * part, length = length_of(shown, mine, part);
  char *sum = sheet_of(self, self->rank)->data + mine;
  for (int i = 1; i < self->size; i++)
    if (!reduce(self, run->plan, sheet_of(self, other(self, i))->data + mine, sum, length)) return false;
  divide(self, run->plan, sum, length);
  return true;
}

static void take_parts(const struct meeting *self, char *target, size_t shown) {
  size_t part = part_of(shown, (size_t)self->size);
  for (int i = 0; i < self->size; i++) {
    size_t rank = (size_t)other(self, i), length = length_of(shown, rank * part, part);
    if (length) memcpy(target + rank * part, sheet_of(self, (int)rank)->data + rank * part, length);
  }
}

bool use_sheets(struct meeting *self, struct run *run) {
  const struct plan *plan = run->plan;
  size_t shown = step_of(self, run);
  bool by_parts = plan->action == FOLD && !plan->stride && plan->piece >= WORTH_PARTS;
  if (by_parts && !run->is_folded) {
    if (!fold_part(self, run, shown)) return false;
    run->is_folded = true;
    show(self, offsetof(struct sheet, folded));
    return true;
  }
  run->is_folded = false;
  char *target = run->target + run->begin;
  if (!by_parts && !use(self, plan, target, shown)) return false;
  if (by_parts && gets(plan, self->rank)) take_parts(self, target, shown);
  run->begin += shown;
  if (run->begin < plan->piece) {
    self->step++;
    fill_sheet(self, run);
    show(self, offsetof(struct sheet, number));
  } else {
    run->stage = OVER;
  }
  return true;
}
