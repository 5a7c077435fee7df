/* The library itself: initialisation, versions, and how a GPU becomes a handle. */
#include "ask.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static unsigned count(void)
{
    unsigned found = 0;
    for (int place = 0; place < MOST_GPUS; place++)
        found += there(place);
    return found;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    nvmlReturn_t result = fault("nvmlInitWithFlags");
    if (result == NVML_SUCCESS)
        result = (nvmlReturn_t)state_number(NVML_SUCCESS, "init");
    if (result != NVML_SUCCESS)
        return result;
    const char *driver = state_text("driver"), *library = state_text("library");
    if (driver && library && strcmp(driver, library) != 0)
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    /* The manual says that it fails without this flag, not how. */
    if (!(flags & NVML_INIT_FLAG_NO_GPUS) && !count())
        return NVML_ERROR_NOT_FOUND;
    users++;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlShutdown(void)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t result = fault("nvmlShutdown");
    users -= result == NVML_SUCCESS;
    return result;
}

/* Words of the codes, by number (nvml.h, nvmlReturn_t). */
static const char *const WORDS[] = {
    "Success",
    "Uninitialized",
    "Invalid Argument",
    "Not Supported",
    "Insufficient Permissions",
    "Already Initialized",
    "Not Found",
    "Insufficient Size",
    "Insufficient External Power",
    "Driver Not Loaded",
    "Timeout",
    "Interrupt Request Issue",
    "NVML Shared Library Not Found",
    "Function Not Found",
    "Corrupted infoROM",
    "GPU is lost",
    "GPU requires reset",
    "GPU access blocked by the operating system",
    "Driver/library version mismatch",
    "In use by another client",
    "Insufficient Memory",
    "No data",
    "vGPU ECC operation not supported",
    "Insufficient Resources",
    "Frequency Not Supported",
    "Argument Version Mismatch",
    "Deprecated",
    "Not Ready",
    "GPU Not Found",
    "Invalid State",
};

API const char *nvmlErrorString(nvmlReturn_t result)
{
    return result >= 0 && (size_t)result < sizeof WORDS / sizeof *WORDS ? WORDS[result] : "Unknown Error";
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    nvmlReturn_t result = ask_system("nvmlSystemGetDriverVersion", version);
    return result != NVML_SUCCESS ? result : give_text(state_text("driver"), version, size);
}

/* CUDA's major version stands before the library's own. */
API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    char text[96];
    nvmlReturn_t result = ask_system("nvmlSystemGetNVMLVersion", version);
    if (result != NVML_SUCCESS)
        return result;
    if (!state_text("library"))
        return NVML_ERROR_NOT_SUPPORTED;
    snprintf(text, sizeof text, "%d.%s", (int)state_number(12000, "cuda") / 1000, state_text("library"));
    return give_text(text, version, size);
}

static nvmlReturn_t cuda_version(const char *call, int *version)
{
    nvmlReturn_t result = ask_system(call, version);
    if (result != NVML_SUCCESS)
        return result;
    if (!state_text("cuda"))
        return NVML_ERROR_NOT_SUPPORTED;
    *version = (int)state_number(0, "cuda");
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return cuda_version("nvmlSystemGetCudaDriverVersion", version);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return cuda_version("nvmlSystemGetCudaDriverVersion_v2", version);
}

/* --- handles --------------------------------------------------------------------------------------------- */

/* A lost GPU is counted: it is its handle that cannot be had. */
API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *into)
{
    nvmlReturn_t result = ask_system("nvmlDeviceGetCount_v2", into);
    if (result == NVML_SUCCESS)
        *into = count();
    return result;
}

static nvmlReturn_t give_handle(const char *call, int place, nvmlDevice_t *device)
{
    *device = (nvmlDevice_t)(intptr_t)(place + 1);
    return health_of(call, place);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    const char *call = "nvmlDeviceGetHandleByIndex_v2";
    nvmlReturn_t result = ask_system(call, device);
    if (result != NVML_SUCCESS)
        return result;
    for (int place = 0; place < MOST_GPUS; place++)
        if (there(place) && index-- == 0)
            return give_handle(call, place, device);
    return NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    nvmlReturn_t result = ask("nvmlDeviceGetIndex", device, index);
    if (result != NVML_SUCCESS)
        return result;
    *index = 0;
    for (int place = 0; place < place_of(device); place++)
        *index += there(place);
    return NVML_SUCCESS;
}

static nvmlReturn_t handle_by_text(const char *call, const char *key, const char *wanted, nvmlDevice_t *device)
{
    nvmlReturn_t result = ask_system(call, wanted ? device : NULL);
    if (result != NVML_SUCCESS)
        return result;
    for (int place = 0; place < MOST_GPUS; place++) {
        const char *text = there(place) ? state_text("gpus.%d.%s", place, key) : NULL;
        if (text && strcmp(text, wanted) == 0)
            return give_handle(call, place, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return handle_by_text("nvmlDeviceGetHandleByUUID", "uuid", uuid, device);
}

API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return handle_by_text("nvmlDeviceGetHandleBySerial", "serial", serial, device);
}

/* --- PCI addresses ----------------------------------------------------------------------------------------- */

struct address {
    unsigned domain, bus, device;
};

/* `domain:bus:device.function`, hexadecimal digits of either case, a domain of any length. */
static bool parse_address(const char *text, struct address *into)
{
    return text && sscanf(text, "%x:%x:%x", &into->domain, &into->bus, &into->device) == 3;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device)
{
    const char *call = "nvmlDeviceGetHandleByPciBusId_v2";
    struct address wanted, found;
    nvmlReturn_t result = ask_system(call, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!parse_address(text, &wanted))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int place = 0; place < MOST_GPUS; place++)
        if (there(place) && parse_address(GPU_TEXT(place, "pci"), &found) &&
            memcmp(&wanted, &found, sizeof found) == 0)
            return give_handle(call, place, device);
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t give_pci(const char *text, struct pci_info *pci)
{
    struct address address;
    if (!text)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!parse_address(text, &address))
        return NVML_ERROR_UNKNOWN;
    *pci = (struct pci_info){.domain = address.domain, .bus = address.bus, .device = address.device};
    snprintf(pci->legacy_bus_id, sizeof pci->legacy_bus_id, "%04X:%02X:%02X.0", address.domain & 0xffff,
             address.bus & 0xff, address.device & 0xff);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", address.domain, address.bus & 0xff,
             address.device & 0xff);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci_info *pci)
{
    int place = place_of(device);
    nvmlReturn_t result = ask("nvmlDeviceGetPciInfo_v3", device, pci);
    if (result == NVML_SUCCESS)
        result = give_pci(GPU_TEXT(place, "pci"), pci);
    if (result != NVML_SUCCESS)
        return result;
    /* H100 SXM5 80GB of NVIDIA, device before vendor */
    pci->pci_device_id = (unsigned)GPU_NUMBER(place, 0x233010de, "pci_device_id");
    pci->pci_subsystem_id = (unsigned)GPU_NUMBER(place, 0x16c110de, "pci_subsystem_id");
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, struct pci_info *pci)
{
    int place = place_of(device);
    nvmlReturn_t result = ask("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, pci);
    if (result != NVML_SUCCESS)
        return result;
    if (link >= MOST_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_pci(GPU_TEXT(place, "links.%u", link) ? GPU_TEXT(place, "nvlink.remote.%u", link) : NULL, pci);
}
