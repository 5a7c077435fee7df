/* nvmlDeviceGetFieldValues: one call for many values, each with a result of its own (nvml.h, NVML_FI_DEV_*). */
#include "ask.h"

#include <time.h>

enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 }; /* nvmlValueType_t */

/* Fields that are one value of the state. */
static const struct {
    unsigned field;
    const char *key;
} NUMBERS[] = {
    {1, "ecc.mode"},           {82, "memory_temperature"}, {94, "pcie.replays"},   {142, "rows.correctable"},
    {143, "rows.uncorrectable"}, {144, "rows.pending"},      {145, "rows.failed"},   {166, "nvlink.version"},
    {185, "power"},            {186, "power"},             {230, "recovery"},
};

static const struct {
    unsigned field, error, counter;
    int location;
} ECC[] = {
    {3, 0, 0, ALL_LOCATIONS}, {4, 1, 0, ALL_LOCATIONS}, {5, 0, 1, ALL_LOCATIONS}, {6, 1, 1, ALL_LOCATIONS},
    {11, 0, 0, DRAM},         {12, 1, 0, DRAM},         {22, 0, 1, DRAM},         {23, 1, 1, DRAM},
};

/* Error counters of links: of the first twelve one by one in two runs, and of all in one. */
static const struct {
    unsigned counter, first, sixth, total;
} LINKS[] = {
    {2, 32, 96, 38}, {3, 39, 102, 45}, {0, 46, 108, 52}, {1, 53, 114, 59}, {4, 148, 154, 160},
};

static nvmlReturn_t total_of_links(int place, unsigned counter, unsigned long long *into)
{
    unsigned long long one;
    if (!GPU_TEXT(place, "links.0"))
        return NVML_ERROR_NOT_SUPPORTED;
    *into = 0;
    for (unsigned link = 0; link < MOST_LINKS; link++)
        if (link_errors(place, link, counter, &one) == NVML_SUCCESS)
            *into += one;
    return NVML_SUCCESS;
}

static nvmlReturn_t of_links(int place, const struct field_value *value, unsigned long long *into)
{
    unsigned long long flit = 0;
    unsigned field = value->field;
    for (size_t i = 0; i < sizeof LINKS / sizeof *LINKS; i++) {
        if (field == LINKS[i].total)
            return total_of_links(place, LINKS[i].counter, into);
        if (field >= LINKS[i].first && field < LINKS[i].first + 6)
            return link_errors(place, field - LINKS[i].first, LINKS[i].counter, into);
        if (field >= LINKS[i].sixth && field < LINKS[i].sixth + 6)
            return link_errors(place, field - LINKS[i].sixth + 6, LINKS[i].counter, into);
    }
    switch (field) { /* of the link that `scope` names */
    case 161: return link_errors(place, value->scope, 0, into);
    case 162: return link_errors(place, value->scope, 1, into);
    case 163: {
        nvmlReturn_t result = link_errors(place, value->scope, 2, &flit);
        if (result == NVML_SUCCESS)
            result = link_errors(place, value->scope, 3, into);
        *into += flit;
        return result;
    }
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
}

static unsigned number_of_links(int place)
{
    unsigned found = 0;
    while (GPU_TEXT(place, "links.%u", found))
        found++;
    return found;
}

static nvmlReturn_t read_field(int place, struct field_value *value)
{
    value->type = UNSIGNED_INT;
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
        if (value->field == NUMBERS[i].field) {
            value->value.ui = (unsigned)state_number(0, "gpus.%d.%s", place, NUMBERS[i].key);
            return state_text("gpus.%d.%s", place, NUMBERS[i].key) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        }
    switch (value->field) {
    case 2: /* the ECC mode after the next reset */
        value->value.ui = (unsigned)GPU_NUMBER(place, GPU_NUMBER(place, 0, "ecc.mode"), "ecc.mode_pending");
        return GPU_TEXT(place, "ecc.mode") ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    case 91:
        value->value.ui = number_of_links(place);
        return NVML_SUCCESS;
    case 165: /* NVLink state, of the link that `scope` names */
        value->value.ui = (unsigned)GPU_NUMBER(place, 0, "links.%u", value->scope);
        return GPU_TEXT(place, "links.%u", value->scope) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    }
    value->type = UNSIGNED_LONG_LONG;
    for (size_t i = 0; i < sizeof ECC / sizeof *ECC; i++)
        if (value->field == ECC[i].field)
            return ecc_count(place, ECC[i].error, ECC[i].counter, (unsigned)ECC[i].location, &value->value.ull);
    return of_links(place, value, &value->value.ull);
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, struct field_value *values)
{
    struct timespec now;
    nvmlReturn_t result = ask("nvmlDeviceGetFieldValues", device, count > 0 ? values : NULL);
    if (result != NVML_SUCCESS)
        return result;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        values[i].value.ull = 0;
        values[i].timestamp = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        values[i].latency = 0;
        values[i].result = (uint32_t)read_field(place_of(device), &values[i]);
    }
    return NVML_SUCCESS;
}
