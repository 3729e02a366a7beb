/* One rank's end of a group over a library of messages, and an operation of it; see meeting.c. */
#ifndef HAL_MEETING_H
#define HAL_MEETING_H

#include "speedups.h"

#include <stdatomic.h>

enum {
  LINE = 64,   /* bytes of the processor's cache line, and a multiple of every element's */
  BEFORE = 24, /* bytes of a header in front of the number, and an end */
  AFTER = 52,  /* and behind it */
  HEADER = 96, /* bytes, ended by zeros: both, and the digits */
  RECORDS = 32, /* headers that are remembered; those in front may be overwritten while they are read */
};

typedef int (*library_function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

/* What a rank does with the data of all. */
enum action { NOTHING, FOLD, PLACE, TAKE };

/* How elements are reduced: as the library does it; as floats whose sum is divided by the number of ranks; to the least
 * or the greatest float; as integers of 8 or 16 bits, whose sum wraps around. */
enum way { PLAIN, AVERAGE, LEAST, GREATEST, WRAPPED };

/* What one rank shows the others of a step of an operation in memory that all share: a region has two, which take turns.
 * A rank writes to one again when all have shown it the next step, and have read this one. */
struct sheet {
  char header[HEADER];     /* of the operation, in its first step */
  _Atomic uint64_t number; /* of the step; written last */
  _Atomic uint64_t folded; /* the same, once this rank's part of the data holds that part of the result */
  _Alignas(LINE) char data[];
};

/* An operation but for its number and its buffers. */
struct plan {
  struct plan *next;
  char before[BEFORE], after[AFTER]; /* of the header, around the number */
  enum action action;
  int root;               /* that alone gets (FOLD) or gives (TAKE); -1: all do */
  size_t piece, stride;   /* bytes for each rank, and from one rank's to the next one's in the source */
  uintptr_t type, op;     /* to reduce with */
  int item;               /* bytes of an element */
  enum way way;
};

struct meeting {
  PyObject_HEAD
  int (*call)(void *stream, int (*function)(void *, int), void *argument);
  library_function send, receive, test_all, cancel, reduce_local, probe;
  uintptr_t comm, byte, tag;            /* handles and constants of the library's */
  uintptr_t any, told_tag;              /* of what ranks tell each other, as that the group is broken */
  size_t request; /* bytes of a request */
  int rank, size;
  size_t most, room;     /* bytes of a piece behind a header, or of data in a sheet; and of what a rank sends at once */
  size_t offset, length; /* of each rank's region in its file: bytes before it, and its own; 0 if they share none */
  char **regions;
  uint64_t step;         /* that this rank has come to */
  size_t shown;          /* where a sheet has the number that not all ranks have written yet; 0: none is awaited */
  size_t *bytes;         /* of data behind the header to each rank */
  int posted, receiving; /* requests, and those of them in front that receive */
  char *sent, *taken, *requests, *statuses;
  char records[RECORDS][HEADER];
  _Atomic uint64_t begun, agreed; /* operations that this rank has come to, and that all have */
  _Atomic int inside, status; /* `status` is the library's for a call that failed */
  _Atomic bool stopped, is_held, ended; /* nothing begins or comes any more; nor is anything to come; its stream goes on */
  _Atomic bool is_left; /* an operation that has begun in the library and not ended */
  _Atomic bool moves;   /* data between buffers is on its way */
  _Atomic bool differ, listens; /* it `listens` until Python has taken what others told */
  int64_t heard; /* when nobody had told anything */
  struct plan *plans;
};

/* How far an operation is: not begun, with messages that may be on their way, at its end, or failed. */
enum stage { FRESH, SENT, OVER, WRONG };

/* An operation. */
struct run {
  struct meeting *meeting;
  const struct plan *plan;
  char *source, *target;
  bool by_sheets; /* its data goes through memory that all share */
  bool is_small;  /* else it is behind the headers */
  enum stage stage;
  bool has_agreed; /* the headers are exchanged */
  bool is_folded;  /* this rank's part of what a step shows */
  int turn;        /* of large data, how often messages have been posted */
  size_t begin;    /* bytes of a piece that are done */
};

static inline char *message_to(const struct meeting *self, int rank) { return self->sent + (size_t)rank * (HEADER + self->most); }
static inline char *message_from(const struct meeting *self, int rank) { return self->taken + (size_t)rank * self->room; }

/* Of the last step. */
static inline struct sheet *sheet_of(const struct meeting *self, int rank) {
  return (struct sheet *)(self->regions[rank] + self->step % 2 * (self->length / 2));
}

/* The header of a rank, with its data behind it. */
static inline char *header_of(const struct meeting *self, int rank) {
  return self->length ? sheet_of(self, rank)->header : message_from(self, rank);
}

static inline uintptr_t word(const void *pointer) { return (uintptr_t)pointer; }

/* The `number`th of the other ranks, from 1 on: each rank has another first one. */
static inline int other(const struct meeting *self, int number) { return (self->rank + number) % self->size; }

/* Whether a call of the library's has not failed. */
bool note(struct meeting *self, int status);

/* Begin to send or to receive a message of so many bytes, if any. No message is sent before all that come are posted. */
bool send_message(struct meeting *self, const char *message, size_t length, int rank);
bool receive_message(struct meeting *self, char *message, size_t length, int rank);

/* Show the others that this rank's sheet holds what its number at this place stands for, and await the same of them. */
void show(struct meeting *self, size_t place);

/* Whether a rank gets a part of an operation's result. */
static inline bool gets(const struct plan *plan, int rank) {
  return plan->action != FOLD || plan->root < 0 || plan->root == rank;
}

/* The most bytes of a part, of `parts` that make up some bytes and each have a rank of its own. */
static inline size_t part_of(size_t bytes, size_t parts) { return ((bytes + parts - 1) / parts + LINE - 1) / LINE * LINE; }

/* How many of some bytes a part has from a place on. */
static inline size_t length_of(size_t bytes, size_t begin, size_t part) {
  size_t left = begin < bytes ? bytes - begin : 0;
  return left < part ? left : part;
}

/* ---- sheets.c: data in memory that all ranks share ---- */

/* Whether an operation's data goes through sheets. */
bool goes_by_sheets(const struct meeting *self, const struct plan *plan);

/* Write what a step shows to this rank's sheet; use what all show, and go on to the next step, or end the operation. */
void fill_sheet(const struct meeting *self, const struct run *run);
bool use_sheets(struct meeting *self, struct run *run);

/* ---- moves.c: data in messages ---- */

/* Reduce what another rank gives, of some bytes, into a target; divide the sum of all, if an average is asked for. */
bool reduce(struct meeting *self, const struct plan *plan, const char *data, char *target, size_t length);
void divide(const struct meeting *self, const struct plan *plan, char *target, size_t length);

/* Write the data of a small operation into the messages. */
void pack(const struct meeting *self, const struct run *run);

/* Make so many bytes of the result of what the others have brought, or show. */
bool use(struct meeting *self, const struct plan *plan, char *target, size_t length);

/* Post the next messages of a large operation, whose last ones are there, or end it; false if the library fails. */
bool move_on(struct meeting *self, struct run *run);

#endif
