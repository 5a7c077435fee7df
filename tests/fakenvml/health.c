/* The memory's health: ECC counters, remapped rows, retired pages. */
#include "ask.h"

/* error: 0 corrected, 1 uncorrected; counter: 0 since the driver was loaded, 1 in the card's life. The state has the
 * totals, and what of them is SRAM's under `ecc.sram`; the rest is the memory's. Newer cards know no other location. */
nvmlReturn_t ecc_count(int place, unsigned error, unsigned counter, unsigned location, unsigned long long *into)
{
    static const char *const KEYS[2][2] = {{"corrected", "corrected_aggregate"},
                                           {"uncorrected", "uncorrected_aggregate"}};
    if (error > 1 || counter > 1 || (location > SRAM && location != (unsigned)ALL_LOCATIONS))
        return NVML_ERROR_INVALID_ARGUMENT;
    const char *key = KEYS[error][counter];
    if (!GPU_TEXT(place, "ecc.%s", key) || !GPU_NUMBER(place, 1, "ecc.mode"))
        return NVML_ERROR_NOT_SUPPORTED;
    long long total = GPU_NUMBER(place, 0, "ecc.%s", key), sram = GPU_NUMBER(place, 0, "ecc.sram.%s", key);
    if (location == (unsigned)ALL_LOCATIONS)
        *into = (unsigned long long)total;
    else if (location == SRAM)
        *into = (unsigned long long)sram;
    else if (location == DRAM)
        *into = total > sram ? (unsigned long long)(total - sram) : 0;
    else
        return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned error, unsigned counter,
                                             unsigned long long *into)
{
    nvmlReturn_t result = ask("nvmlDeviceGetTotalEccErrors", device, into);
    return result != NVML_SUCCESS ? result
                                  : ecc_count(place_of(device), error, counter, (unsigned)ALL_LOCATIONS, into);
}

API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned error, unsigned counter,
                                                 unsigned location, unsigned long long *into)
{
    nvmlReturn_t result = ask("nvmlDeviceGetMemoryErrorCounter", device, location <= SRAM ? into : NULL);
    return result != NVML_SUCCESS ? result : ecc_count(place_of(device), error, counter, location, into);
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    nvmlReturn_t result = give_number("nvmlDeviceGetEccMode", device, "ecc.mode", pending ? current : NULL);
    if (result == NVML_SUCCESS)
        *pending = (unsigned)GPU_NUMBER(place_of(device), *current, "ecc.mode_pending");
    return result;
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                           unsigned *pending, unsigned *failed)
{
    int place = place_of(device);
    bool all = corrected && uncorrected && pending;
    nvmlReturn_t result = ask("nvmlDeviceGetRemappedRows", device, all ? failed : NULL);
    if (result != NVML_SUCCESS)
        return result;
    if (!GPU_TEXT(place, "rows.pending"))
        return NVML_ERROR_NOT_SUPPORTED;
    *corrected = (unsigned)GPU_NUMBER(place, 0, "rows.correctable");
    *uncorrected = (unsigned)GPU_NUMBER(place, 0, "rows.uncorrectable");
    *pending = (unsigned)GPU_NUMBER(place, 0, "rows.pending");
    *failed = (unsigned)GPU_NUMBER(place, 0, "rows.failed");
    return NVML_SUCCESS;
}

/* How many banks have how many spare rows left: all, most, some, one, none. */
API nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, struct row_histogram *into)
{
    int place = place_of(device);
    nvmlReturn_t result = ask("nvmlDeviceGetRowRemapperHistogram", device, into);
    if (result != NVML_SUCCESS)
        return result;
    if (!GPU_TEXT(place, "rows.histogram.0"))
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned *const banks[] = {&into->max, &into->high, &into->partial, &into->low, &into->none};
    for (int i = 0; i < 5; i++)
        *banks[i] = (unsigned)GPU_NUMBER(place, 0, "rows.histogram.%d", i);
    return NVML_SUCCESS;
}

/* --- retired pages: what cards had before they could remap rows ---------------------------------------------- */

/* cause: 0 several single-bit errors, 1 a double-bit error. `times` is there in the second version only, and where
 * the caller has made room for anything. */
static nvmlReturn_t retired(const char *call, nvmlDevice_t device, unsigned cause, unsigned *count,
                            unsigned long long *addresses, unsigned long long *times)
{
    int place = place_of(device);
    nvmlReturn_t result = ask(call, device, cause <= 1 ? count : NULL);
    if (result != NVML_SUCCESS)
        return result;
    if (!GPU_TEXT(place, "retired.pending"))
        return NVML_ERROR_NOT_SUPPORTED;
    const char *key = cause ? "double" : "single";
    unsigned room = *count, found = 0;
    for (; GPU_TEXT(place, "retired.%s.%u.address", key, found); found++) {
        if (found >= room)
            continue;
        if (addresses)
            addresses[found] = (unsigned long long)GPU_NUMBER(place, 0, "retired.%s.%u.address", key, found);
        if (times)
            times[found] = (unsigned long long)GPU_NUMBER(place, 0, "retired.%s.%u.time", key, found);
    }
    *count = found;
    return found > room || (found && !addresses) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count,
                                           unsigned long long *addresses)
{
    return retired("nvmlDeviceGetRetiredPages", device, cause, count, addresses, NULL);
}

/* The binding asks for the size without the last argument. */
API nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned cause, unsigned *count,
                                              unsigned long long *addresses, unsigned long long *times)
{
    return retired("nvmlDeviceGetRetiredPages_v2", device, cause, count, addresses,
                   count && *count && addresses ? times : NULL);
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending)
{
    return give_number("nvmlDeviceGetRetiredPagesPendingStatus", device, "retired.pending", pending);
}
