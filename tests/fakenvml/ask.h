/* What every call has in common: faults first, then the GPU, then what the state file says of it. */
#ifndef FAKENVML_ASK_H
#define FAKENVML_ASK_H

#include "abi.h"
#include "state.h"

#include <stddef.h>

enum { MOST_GPUS = 64, MOST_LINKS = 18 };

/* How often the library has been initialised and not shut down again. */
extern int users;

/* Do what the state wants of a call: be slow, never return, sit in D state, fail. */
nvmlReturn_t fault(const char *call);
/* What a call about the system begins with: UNINITIALIZED, the faults, INVALID_ARGUMENT without an `out`. */
nvmlReturn_t ask_system(const char *call, const void *out);
/* What a call about a GPU begins with: as ask_system, then whether the GPU is there and answers this call. */
nvmlReturn_t ask(const char *call, nvmlDevice_t device, const void *out);
/* As ask, for a GPU that is not a handle yet: lost, or failing this call. */
nvmlReturn_t health_of(const char *call, int place);

/* A handle is the GPU's place in the state file plus one. */
int place_of(nvmlDevice_t device);
/* Whether there is such a GPU and it is not missing. */
bool there(int place);

/* Copy a text that the state has into a buffer: NOT_SUPPORTED without one, INSUFFICIENT_SIZE where it does not fit. */
nvmlReturn_t give_text(const char *text, char *into, unsigned size);
/* The whole of a call that gives one text, one number, of a GPU. */
nvmlReturn_t give_name(const char *call, nvmlDevice_t device, const char *key, char *into, unsigned size);
nvmlReturn_t give_number(const char *call, nvmlDevice_t device, const char *key, unsigned *into);

/* What the state has of a GPU below `key`, a format. */
#define GPU_TEXT(place, key, ...) state_text("gpus.%d." key, (place)__VA_OPT__(, ) __VA_ARGS__)
#define GPU_NUMBER(place, missing, key, ...) \
    state_number((missing), "gpus.%d." key, (place)__VA_OPT__(, ) __VA_ARGS__)

/* What both a call and a field value tell. */
nvmlReturn_t ecc_count(int place, unsigned error, unsigned counter, unsigned location, unsigned long long *into);
nvmlReturn_t link_errors(int place, unsigned link, unsigned counter, unsigned long long *into);
enum { DRAM = 2, SRAM = 7, ALL_LOCATIONS = ~0 }; /* nvmlMemoryLocation_t */

#endif
