/* The data of operations of several processes in messages: behind the headers, or from buffer to buffer (meeting.c). */
#include "meeting.h"

#include <string.h>

/* Elements of a caller's memory, which may begin at any address. */
#define ANYWHERE __attribute__((aligned(1), may_alias))
typedef float any_float ANYWHERE;
typedef double any_double ANYWHERE;
typedef uint16_t any_short ANYWHERE;

#define REDUCE(type, result)                                          \
  for (size_t i = 0; i < length / sizeof(type); i++) {                \
    type given = ((const type *)data)[i], held = ((type *)target)[i]; \
    ((type *)target)[i] = (type)(result);                             \
  }

/* As numpy does it, where libraries do not. Of two floats MPI's functions drop a NaN or keep it, as the ranks come, and Open
 * MPI's sums of small integers stay at their bounds. */
bool reduce(struct meeting *self, const struct plan *plan, const char *data, char *target, size_t length) {
  bool is_short = plan->item == sizeof(float) || plan->item == sizeof(uint8_t);
  switch (plan->way) {
    case LEAST:
      if (is_short) REDUCE(any_float, given < held || given != given ? given : held)
      else REDUCE(any_double, given < held || given != given ? given : held)
      return true;
    case GREATEST:
      if (is_short) REDUCE(any_float, given > held || given != given ? given : held)
      else REDUCE(any_double, given > held || given != given ? given : held)
      return true;
    case WRAPPED:
      if (is_short) REDUCE(uint8_t, given + held)
      else REDUCE(any_short, given + held)
      return true;
    default: break;
  }
  uintptr_t count = length / (size_t)plan->item;
  return note(self, self->reduce_local(word(data), word(target), count, plan->type, plan->op, 0, 0));
}

void divide(const struct meeting *self, const struct plan *plan, char *target, size_t length) {
  if (plan->way != AVERAGE) return;
  for (size_t i = 0; i < length / (size_t)plan->item; i++) {
    if (plan->item == sizeof(float)) ((any_float *)target)[i] /= (float)self->size;
    if (plan->item == sizeof(double)) ((any_double *)target)[i] /= (double)self->size;
  }
}

/* The data that a rank gives this one. */
static const char *data_of(const struct meeting *self, const struct plan *plan, int rank) {
  if (self->length) return sheet_of(self, rank)->data + (size_t)self->rank * plan->stride;
  return message_from(self, rank) + HEADER;
}

bool use(struct meeting *self, const struct plan *plan, char *target, size_t length) {
  if (!length || !gets(plan, self->rank)) return true;
  if (plan->action == TAKE) {
    memcpy(target, data_of(self, plan, plan->root), length);
    return true;
  }
  /* From rank 0 on, at every rank: each reduces all data itself, and in an order of its own its sums of floats would not
   * be those of the others. */
  for (int rank = 0; rank < self->size; rank++) {
    const char *data = data_of(self, plan, rank);
    if (plan->action == PLACE) {
      memcpy(target + (size_t)rank * length, data, length);
    } else if (!rank) {
      memcpy(target, data, length);
    } else if (!reduce(self, plan, data, target, length)) {
      return false;
    }
  }
  divide(self, plan, target, length);
  return true;
}

/* Write the data into the messages: this rank's own, too, since the source may be the target. */
void pack(const struct meeting *self, const struct run *run) {
  const struct plan *plan = run->plan;
  for (int rank = 0; rank < self->size; rank++) {
    bool gives = plan->action == TAKE ? plan->root == self->rank : plan->root < 0 || plan->root == rank;
    self->bytes[rank] = gives ? plan->piece : 0;
    char *message = rank == self->rank ? message_from(self, rank) : message_to(self, rank);
    if (gives && plan->piece) memcpy(message + HEADER, run->source + (size_t)rank * plan->stride, plan->piece);
  }
}

/* Large data that is reduced: each rank makes a part of the result from what the others send it, and sends that part to
 * those that get it: as many bytes as any algorithm moves. It goes by rounds, because what is received has little room. */
struct round {
  bool is_shared;      /* else each rank has a piece of its own, and keeps it */
  size_t part, length; /* the most bytes of a rank's part, and those of this rank's */
  size_t next, mine;   /* bytes from one rank's data to the next one's, and the place of this rank's part in a piece */
  char *sum;           /* of this rank's part */
};

static struct round round_of(struct meeting *self, const struct run *run) {
  const struct plan *plan = run->plan;
  struct round found = {.is_shared = !plan->stride};
  size_t own = (size_t)self->rank;
  found.part = part_of(plan->piece - run->begin, found.is_shared ? (size_t)self->size : 1);
  if (found.part > self->room) found.part = self->room;
  found.next = found.is_shared ? found.part : plan->stride;
  found.mine = run->begin + (found.is_shared ? own * found.part : 0);
  found.length = length_of(plan->piece, found.mine, found.part);
  found.sum = gets(plan, self->rank) ? run->target + found.mine : message_from(self, self->rank);
  return found;
}

static bool exchange_parts(struct meeting *self, const struct run *run) {
  struct round round = round_of(self, run);
  for (int i = 1; i < self->size; i++)
    if (!receive_message(self, message_from(self, other(self, i)), round.length, other(self, i))) return false;
  for (int i = 1; i < self->size; i++) {
    size_t rank = (size_t)other(self, i), place = run->begin + (round.is_shared ? rank * round.part : 0);
    size_t length = length_of(run->plan->piece, place, round.part);
    if (!send_message(self, run->source + run->begin + rank * round.next, length, (int)rank)) return false;
  }
  return true;
}

static bool share_sum(struct meeting *self, struct run *run) {
  const struct plan *plan = run->plan;
  struct round round = round_of(self, run);
  const char *given = run->source + run->begin + (size_t)self->rank * round.next;
  if (round.sum != given) memcpy(round.sum, given, round.length);
  /* In this rank's own order: nobody else makes this part, so all get the same sum. */
  for (int i = 1; i < self->size; i++)
    if (!reduce(self, plan, message_from(self, other(self, i)), round.sum, round.length)) return false;
  divide(self, plan, round.sum, round.length);
  for (int i = 1; round.is_shared && gets(plan, self->rank) && i < self->size; i++) {
    size_t place = run->begin + (size_t)other(self, i) * round.part;
    if (!receive_message(self, run->target + place, length_of(plan->piece, place, round.part), other(self, i))) return false;
  }
  for (int i = 1; round.is_shared && i < self->size; i++)
    if (gets(plan, other(self, i)) && !send_message(self, round.sum, round.length, other(self, i))) return false;
  run->begin += (round.is_shared ? (size_t)self->size : 1) * round.part;
  return true;
}

static bool fold(struct meeting *self, struct run *run) {
  if (run->turn % 2) return share_sum(self, run);
  if (run->begin < run->plan->piece) return exchange_parts(self, run);
  run->stage = OVER;
  return true;
}

/* Exchange large pieces. */
static bool place(struct meeting *self, struct run *run) {
  size_t piece = run->plan->piece, stride = run->plan->stride, own = (size_t)self->rank;
  if (run->turn) run->stage = OVER;
  for (int i = 1; !run->turn && i < self->size; i++)
    if (!receive_message(self, run->target + (size_t)other(self, i) * piece, piece, other(self, i))) return false;
  for (int i = 1; !run->turn && i < self->size; i++)
    if (!send_message(self, run->source + (size_t)other(self, i) * stride, piece, other(self, i))) return false;
  const char *source = run->source + own * stride;
  char *target = run->target + own * piece;
  if (!run->turn && source != target) memcpy(target, source, piece);
  return true;
}

/* Take large data from the root, which sends each rank a part: all send their part to each other. */
static bool take(struct meeting *self, struct run *run) {
  const struct plan *plan = run->plan;
  bool is_root = plan->root == self->rank;
  char *data = run->target;
  size_t part = part_of(plan->piece, (size_t)self->size), mine = (size_t)self->rank * part;
  size_t length = length_of(plan->piece, mine, part);
  if (!is_root && !run->turn) return receive_message(self, data + mine, length, plan->root);
  if (run->turn > !is_root) {
    run->stage = OVER;
    return true;
  }
  if (is_root && run->source != data) memcpy(data, run->source, plan->piece);
  for (int i = 1; i < self->size; i++) {
    size_t begin = (size_t)other(self, i) * part, bytes = length_of(plan->piece, begin, part);
    if (is_root && !send_message(self, data + begin, bytes, other(self, i))) return false;
    if (!is_root && !receive_message(self, data + begin, bytes, other(self, i))) return false;
  }
  for (int i = 1; i < self->size; i++)
    if (other(self, i) != plan->root && !send_message(self, data + mine, length, other(self, i))) return false;
  return true;
}

bool move_on(struct meeting *self, struct run *run) {
  enum action action = run->plan->action;
  bool is_done = action == FOLD ? fold(self, run) : action == TAKE ? take(self, run) : place(self, run);
  run->turn++;
  return is_done;
}
