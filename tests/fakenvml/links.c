/* How a GPU is joined to the others: NVLink, peer access, topology, the fabric. */
#include "ask.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* INVALID_ARGUMENT for a link that no card has, NOT_SUPPORTED for one that this card has not. */
static nvmlReturn_t has_link(int place, unsigned link)
{
    if (link >= MOST_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    return GPU_TEXT(place, "links.%u", link) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *into)
{
    nvmlReturn_t result = ask("nvmlDeviceGetNvLinkState", device, into);
    if (result == NVML_SUCCESS)
        result = has_link(place_of(device), link);
    if (result == NVML_SUCCESS)
        *into = (unsigned)GPU_NUMBER(place_of(device), 0, "links.%u", link);
    return result;
}

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *into)
{
    nvmlReturn_t result = ask("nvmlDeviceGetNvLinkVersion", device, into);
    if (result == NVML_SUCCESS)
        result = has_link(place_of(device), link);
    if (result != NVML_SUCCESS)
        return result;
    if (!GPU_TEXT(place_of(device), "nvlink.version"))
        return NVML_ERROR_NOT_SUPPORTED;
    *into = (unsigned)GPU_NUMBER(place_of(device), 0, "nvlink.version");
    return NVML_SUCCESS;
}

/* counter: nvmlNvLinkErrorCounter_t. The state has those that are not 0, `nvlink.errors.<link>.<name>`. */
nvmlReturn_t link_errors(int place, unsigned link, unsigned counter, unsigned long long *into)
{
    static const char *const KEYS[] = {"replay", "recovery", "crc_flit", "crc_data", "ecc_data"};
    nvmlReturn_t result = has_link(place, link);
    if (result != NVML_SUCCESS)
        return result;
    if (counter >= sizeof KEYS / sizeof *KEYS)
        return NVML_ERROR_INVALID_ARGUMENT;
    *into = (unsigned long long)GPU_NUMBER(place, 0, "nvlink.errors.%u.%s", link, KEYS[counter]);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter,
                                                 unsigned long long *into)
{
    nvmlReturn_t result = ask("nvmlDeviceGetNvLinkErrorCounter", device, into);
    return result != NVML_SUCCESS ? result : link_errors(place_of(device), link, counter, into);
}

/* --- pairs ------------------------------------------------------------------------------------------------- */

/* What a call about two GPUs begins with. */
static nvmlReturn_t ask_both(const char *call, nvmlDevice_t one, nvmlDevice_t other, const void *out)
{
    nvmlReturn_t result = ask(call, one, out);
    if (result != NVML_SUCCESS)
        return result;
    if (!there(place_of(other)))
        return NVML_ERROR_INVALID_ARGUMENT;
    return health_of(call, place_of(other));
}

/* Whether both have a number and the same one. */
static bool share(nvmlDevice_t one, nvmlDevice_t other, const char *key)
{
    long long mine = state_number(-1, "gpus.%d.%s", place_of(one), key);
    return mine >= 0 && mine == state_number(-1, "gpus.%d.%s", place_of(other), key);
}

/* index: 0 read, 1 write, 2 NVLink, 3 atomics, 4 PCI; status: 0 fine, 5 not supported (nvmlGpuP2PStatus_t). */
API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned index, unsigned *status)
{
    nvmlReturn_t result = ask_both("nvmlDeviceGetP2PStatus", one, other, index <= 4 ? status : NULL);
    if (result == NVML_SUCCESS)
        *status = share(one, other, "island") ? 0 : 5;
    return result;
}

/* 10 one PCIe switch, 40 one NUMA node, 50 the other end of the machine (nvmlGpuTopologyLevel_t). */
API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level)
{
    nvmlReturn_t result = ask_both("nvmlDeviceGetTopologyCommonAncestor", one, other, level);
    if (result == NVML_SUCCESS)
        *level = share(one, other, "pcie.switch") ? 10 : share(one, other, "numa") ? 40 : 50;
    return result;
}

/* --- the fabric -------------------------------------------------------------------------------------------- */

static void read_uuid(const char *text, unsigned char into[16])
{
    int digits = 0;
    memset(into, 0, 16);
    for (; text && *text && digits < 32; text++)
        if (isxdigit((unsigned char)*text)) {
            char digit[] = {*text, '\0'};
            into[digits / 2] |= (unsigned char)(strtoul(digit, NULL, 16) << (digits % 2 ? 0 : 4));
            digits++;
        }
}

static nvmlReturn_t give_fabric(const char *call, nvmlDevice_t device, const void *out, struct fabric_v3 *into)
{
    int place = place_of(device);
    nvmlReturn_t result = ask(call, device, out);
    if (result != NVML_SUCCESS)
        return result;
    if (!GPU_TEXT(place, "fabric.state"))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(into, 0, sizeof *into); /* the binding takes `state` for a whole word, padding included */
    read_uuid(GPU_TEXT(place, "fabric.cluster"), into->cluster);
    into->status = (nvmlReturn_t)GPU_NUMBER(place, 0, "fabric.status");
    into->clique = (unsigned)GPU_NUMBER(place, 0, "fabric.clique");
    into->state = (unsigned char)GPU_NUMBER(place, 0, "fabric.state");
    into->health = (unsigned)GPU_NUMBER(place, 0, "fabric.health");
    into->health_summary = (unsigned char)GPU_NUMBER(place, 0, "fabric.health_summary");
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, struct fabric *into)
{
    struct fabric_v3 all;
    nvmlReturn_t result = give_fabric("nvmlDeviceGetGpuFabricInfo", device, into, &all);
    if (result != NVML_SUCCESS)
        return result;
    /* The first version is the third without its head and its tail. */
    memcpy(into, (const char *)&all + offsetof(struct fabric_v3, cluster), sizeof *into);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, struct fabric_v3 *into)
{
    struct fabric_v3 all;
    unsigned version = into ? into->version : 0;
    bool third = version == VERSION(struct fabric_v3, 3);
    if (users && into && !third && version != VERSION(struct fabric_v2, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = give_fabric("nvmlDeviceGetGpuFabricInfoV", device, into, &all);
    if (result != NVML_SUCCESS)
        return result;
    all.version = version;
    /* The second version is the beginning of the third. */
    memcpy(into, &all, third ? sizeof(struct fabric_v3) : sizeof(struct fabric_v2));
    return NVML_SUCCESS;
}
