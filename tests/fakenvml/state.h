/* The state file of the fake driver, flattened: `gpus.2.memory.used` → text. One thread at a time. */
#ifndef FAKENVML_STATE_H
#define FAKENVML_STATE_H

#include <stdbool.h>

/* Read the file if it has changed, in any case where `anew`. False where there is none or it never was JSON;
 * a file that has become rubbish leaves what was read before. */
bool state_fresh(bool anew);
/* The folder that the state file lies in. */
const char *state_folder(void);
/* The text of a value, NULL where the file has none (or null). Good until the next state_fresh. */
const char *state_text(const char *path, ...) __attribute__((format(printf, 1, 2)));
/* A number or a boolean; `missing` where the file has none. */
long long state_number(long long missing, const char *path, ...) __attribute__((format(printf, 2, 3)));

#endif
