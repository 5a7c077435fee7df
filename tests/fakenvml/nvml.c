/* libnvidia-ml.so.1 with NVML's ABI (nvml.h of CUDA 12), as far as bandog calls it, over a state file.
 * Each call first does what the state wants of it: fails, is slow, never returns, or sits in D state. */
#include "state.h"

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};
enum { MOST_GPUS = 64, MEMORY_V2 = 0x02000028, FIELD_RECOVERY = 230, TYPE_UINT = 1 };
/* "not available" of usedGpuMemory */
static const unsigned long long NO_VALUE = ~0ULL;

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};
struct utilization {
    unsigned gpu, memory;
};
struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct field_value {
    uint32_t field, scope;
    int64_t timestamp, latency;
    uint32_t type, result;
    union {
        double number;
        unsigned ui;
        unsigned long long ull;
    } value;
};
struct histogram {
    unsigned max, high, partial, low, none;
};

static int users;

/* --- faults ------------------------------------------------------------------------------------------- */

/* The parent of a vfork sits in D until the child has opened the FIFO, which nobody writes to. */
static void sit_in_d(const char *fifo)
{
    char *const argv[] = {"true", NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 9, fifo, O_RDONLY, 0);
    if (posix_spawn(&pid, "/bin/true", &actions, NULL, argv, NULL) == 0)
        waitpid(pid, NULL, 0);
    posix_spawn_file_actions_destroy(&actions);
}

/* On a frozen file system this sits in D, and not even SIGKILL ends it before it is thawed. */
static void write_to(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    if (write(file, "x", 1) != 1)
        perror(path);
    close(file);
}

static nvmlReturn_t fault(const char *call)
{
    long long milliseconds;
    const char *fifo, *path;
    if (!state_fresh())
        return DRIVER_NOT_LOADED;
    milliseconds = state_number(0, "calls.%s.slow_ms", call);
    if (milliseconds > 0)
        usleep((useconds_t)(milliseconds * 1000));
    while (state_number(0, "calls.%s.hang", call)) {
        sleep(1);
        state_fresh();
    }
    if ((fifo = state_text("calls.%s.d_state", call)) != NULL)
        sit_in_d(fifo);
    if ((path = state_text("calls.%s.write_to", call)) != NULL)
        write_to(path);
    return (nvmlReturn_t)state_number(SUCCESS, "calls.%s.error", call);
}

/* --- GPUs ---------------------------------------------------------------------------------------------- */

/* A handle is the place in the state file plus one. */
static int place_of(nvmlDevice_t device)
{
    return (int)(intptr_t)device - 1;
}

static bool there(int place)
{
    return place >= 0 && place < MOST_GPUS && state_text("gpus.%d.uuid", place) &&
           !state_number(0, "gpus.%d.missing", place);
}

/* What every call about a GPU begins with. */
static nvmlReturn_t ask(const char *call, nvmlDevice_t device)
{
    nvmlReturn_t result = fault(call);
    int place = place_of(device);
    if (!users)
        return UNINITIALIZED;
    if (result != SUCCESS)
        return result;
    if (place < 0 || place >= MOST_GPUS || !state_text("gpus.%d.uuid", place))
        return INVALID_ARGUMENT;
    if (!there(place) || state_number(0, "gpus.%d.lost", place))
        return GPU_IS_LOST;
    return (nvmlReturn_t)state_number(SUCCESS, "gpus.%d.errors.%s", place, call);
}

static nvmlReturn_t give_text(const char *text, char *into, unsigned size)
{
    if (!text)
        return NOT_SUPPORTED;
    if (!into)
        return INVALID_ARGUMENT;
    if (strlen(text) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(into, text);
    return SUCCESS;
}

static nvmlReturn_t give_number(const char *call, nvmlDevice_t device, const char *key, unsigned *into)
{
    nvmlReturn_t result = ask(call, device);
    if (result != SUCCESS)
        return result;
    if (!state_text("gpus.%d.%s", place_of(device), key))
        return NOT_SUPPORTED;
    *into = (unsigned)state_number(0, "gpus.%d.%s", place_of(device), key);
    return SUCCESS;
}

static nvmlReturn_t give_name(const char *call, nvmlDevice_t device, const char *key, char *into, unsigned size)
{
    nvmlReturn_t result = ask(call, device);
    return result != SUCCESS ? result : give_text(state_text("gpus.%d.%s", place_of(device), key), into, size);
}

/* --- the library ----------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    nvmlReturn_t result = fault("nvmlInitWithFlags");
    (void)flags;
    if (result != SUCCESS)
        return result;
    result = (nvmlReturn_t)state_number(SUCCESS, "init");
    if (result != SUCCESS)
        return result;
    const char *driver = state_text("driver"), *library = state_text("library");
    if (driver && library && strcmp(driver, library) != 0)
        return MISMATCH;
    users++;
    return SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
    if (!users)
        return UNINITIALIZED;
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case 10: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    case 16: return "GPU requires reset";
    case MISMATCH: return "Driver/library version mismatch";
    case ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
    default: return "Unknown Error";
    }
}

static nvmlReturn_t ask_system(const char *call)
{
    nvmlReturn_t result = fault(call);
    return users ? result : UNINITIALIZED;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    nvmlReturn_t result = ask_system("nvmlSystemGetDriverVersion");
    return result != SUCCESS ? result : give_text(state_text("driver"), version, size);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    char text[96];
    nvmlReturn_t result = ask_system("nvmlSystemGetNVMLVersion");
    if (result != SUCCESS)
        return result;
    snprintf(text, sizeof text, "12.%s", state_text("library") ? state_text("library") : "0");
    return give_text(text, version, size);
}

static nvmlReturn_t cuda_version(const char *call, int *version)
{
    nvmlReturn_t result = ask_system(call);
    *version = (int)state_number(12080, "cuda");
    return result;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return cuda_version("nvmlSystemGetCudaDriverVersion", version);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return cuda_version("nvmlSystemGetCudaDriverVersion_v2", version);
}

/* --- handles --------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    nvmlReturn_t result = ask_system("nvmlDeviceGetCount_v2");
    *count = 0;
    for (int place = 0; result == SUCCESS && place < MOST_GPUS; place++)
        *count += there(place);
    return result;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    nvmlReturn_t result = ask_system("nvmlDeviceGetHandleByIndex_v2");
    if (result != SUCCESS)
        return result;
    for (int place = 0; place < MOST_GPUS; place++)
        if (there(place) && index-- == 0) {
            *device = (nvmlDevice_t)(intptr_t)(place + 1);
            if (state_number(0, "gpus.%d.lost", place))
                return GPU_IS_LOST;
            return (nvmlReturn_t)state_number(SUCCESS, "gpus.%d.errors.nvmlDeviceGetHandleByIndex_v2", place);
        }
    return INVALID_ARGUMENT;
}

struct address {
    unsigned domain, bus, device;
};

static bool parse_address(const char *text, struct address *into)
{
    return text && sscanf(text, "%x:%x:%x", &into->domain, &into->bus, &into->device) == 3;
}

static bool address_of(int place, struct address *into)
{
    return parse_address(state_text("gpus.%d.pci", place), into);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device)
{
    struct address wanted, found;
    nvmlReturn_t result = ask_system("nvmlDeviceGetHandleByPciBusId_v2");
    if (result != SUCCESS)
        return result;
    if (!parse_address(text, &wanted))
        return INVALID_ARGUMENT;
    for (int place = 0; place < MOST_GPUS; place++)
        if (there(place) && address_of(place, &found) && memcmp(&wanted, &found, sizeof found) == 0) {
            *device = (nvmlDevice_t)(intptr_t)(place + 1);
            return state_number(0, "gpus.%d.lost", place) ? GPU_IS_LOST : SUCCESS;
        }
    return NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    nvmlReturn_t result = ask_system("nvmlDeviceGetHandleByUUID");
    if (result != SUCCESS)
        return result;
    for (int place = 0; place < MOST_GPUS; place++)
        if (there(place) && strcmp(state_text("gpus.%d.uuid", place), uuid) == 0) {
            *device = (nvmlDevice_t)(intptr_t)(place + 1);
            return state_number(0, "gpus.%d.lost", place) ? GPU_IS_LOST : SUCCESS;
        }
    return NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci_info *pci)
{
    struct address address;
    /* the driver keeps this one: it answers for a lost GPU too */
    nvmlReturn_t result = ask("nvmlDeviceGetPciInfo_v3", device);
    if (result != SUCCESS && result != GPU_IS_LOST)
        return result;
    if (!address_of(place_of(device), &address))
        return UNKNOWN;
    memset(pci, 0, sizeof *pci);
    pci->domain = address.domain;
    pci->bus = address.bus;
    pci->device = address.device;
    pci->pci_device_id = 0x233010de;
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", address.domain & 0xffff, address.bus & 0xff,
             address.device & 0xff);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", address.domain, address.bus & 0xff,
             address.device & 0xff);
    return SUCCESS;
}

/* --- identity ---------------------------------------------------------------------------------------------- */

#define NAME(call, key)                                                                                      \
    nvmlReturn_t call(nvmlDevice_t device, char *into, unsigned size)                                        \
    {                                                                                                        \
        return give_name(#call, device, key, into, size);                                                    \
    }
#define NUMBER(call, key)                                                                                    \
    nvmlReturn_t call(nvmlDevice_t device, unsigned *into)                                                   \
    {                                                                                                        \
        return give_number(#call, device, key, into);                                                        \
    }

NAME(nvmlDeviceGetUUID, "uuid")
NAME(nvmlDeviceGetName, "name")
NAME(nvmlDeviceGetSerial, "serial")
NAME(nvmlDeviceGetBoardPartNumber, "part_number")
NAME(nvmlDeviceGetVbiosVersion, "vbios")
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.generation_max")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width_max")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width")
NUMBER(nvmlDeviceGetPowerUsage, "power")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    nvmlReturn_t result = ask("nvmlDeviceGetIndex", device);
    *index = 0;
    for (int place = 0; place < place_of(device); place++)
        *index += there(place);
    return result;
}

/* --- state --------------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *into)
{
    return sensor ? INVALID_ARGUMENT : give_number("nvmlDeviceGetTemperature", device, "temperature", into);
}

/* Types of clock: 0 graphics, 1 SM, 2 memory, 3 video. */
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned *into)
{
    return give_number("nvmlDeviceGetClockInfo", device, type == 2 ? "memory_clock" : "clock", into);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned *into)
{
    return give_number("nvmlDeviceGetMaxClockInfo", device, type == 2 ? "memory_clock" : "clock_max", into);
}

static nvmlReturn_t reasons(const char *call, nvmlDevice_t device, unsigned long long *into)
{
    nvmlReturn_t result = ask(call, device);
    *into = (unsigned long long)state_number(0, "gpus.%d.throttle", place_of(device));
    return result;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *into)
{
    return reasons("nvmlDeviceGetCurrentClocksEventReasons", device, into);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *into)
{
    return reasons("nvmlDeviceGetCurrentClocksThrottleReasons", device, into);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *into)
{
    memset(into, 0, sizeof *into);
    return give_number("nvmlDeviceGetUtilizationRates", device, "util", &into->gpu);
}

/* Types of error: 0 corrected, 1 uncorrected; of counter: 0 volatile, 1 aggregate. */
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int error, int counter, unsigned long long *into)
{
    const char *kind = error ? "uncorrected" : "corrected", *more = counter ? "_aggregate" : "";
    nvmlReturn_t result = ask("nvmlDeviceGetTotalEccErrors", device);
    if (result != SUCCESS)
        return result;
    if (!state_text("gpus.%d.ecc.%s%s", place_of(device), kind, more))
        return NOT_SUPPORTED;
    *into = (unsigned long long)state_number(0, "gpus.%d.ecc.%s%s", place_of(device), kind, more);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    nvmlReturn_t result = give_number("nvmlDeviceGetEccMode", device, "ecc.mode", current);
    *pending = *current;
    return result;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                       unsigned *pending, unsigned *failed)
{
    int place = place_of(device);
    nvmlReturn_t result = ask("nvmlDeviceGetRemappedRows", device);
    if (result != SUCCESS)
        return result;
    if (!state_text("gpus.%d.rows.pending", place))
        return NOT_SUPPORTED;
    *corrected = (unsigned)state_number(0, "gpus.%d.rows.correctable", place);
    *uncorrected = (unsigned)state_number(0, "gpus.%d.rows.uncorrectable", place);
    *pending = (unsigned)state_number(0, "gpus.%d.rows.pending", place);
    *failed = (unsigned)state_number(0, "gpus.%d.rows.failed", place);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, struct histogram *into)
{
    int place = place_of(device);
    nvmlReturn_t result = ask("nvmlDeviceGetRowRemapperHistogram", device);
    if (result != SUCCESS)
        return result;
    if (!state_text("gpus.%d.rows.histogram.0", place))
        return NOT_SUPPORTED;
    unsigned *const banks[] = {&into->max, &into->high, &into->partial, &into->low, &into->none};
    for (int i = 0; i < 5; i++)
        *banks[i] = (unsigned)state_number(0, "gpus.%d.rows.histogram.%d", place, i);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    nvmlReturn_t result = give_number("nvmlDeviceGetMigMode", device, "mig", current);
    *pending = *current;
    return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *into)
{
    nvmlReturn_t result = ask("nvmlDeviceGetNvLinkState", device);
    if (result != SUCCESS)
        return result;
    if (!state_text("gpus.%d.links.%u", place_of(device), link))
        return link < 18 ? NOT_SUPPORTED : INVALID_ARGUMENT;
    *into = (unsigned)state_number(0, "gpus.%d.links.%u", place_of(device), link);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, struct field_value *values)
{
    nvmlReturn_t result = ask("nvmlDeviceGetFieldValues", device);
    for (int i = 0; result == SUCCESS && i < count; i++) {
        bool known = values[i].field == FIELD_RECOVERY && state_text("gpus.%d.recovery", place_of(device));
        values[i].result = known ? SUCCESS : NOT_SUPPORTED;
        values[i].type = TYPE_UINT;
        values[i].value.ull = 0;
        values[i].value.ui = (unsigned)state_number(0, "gpus.%d.recovery", place_of(device));
    }
    return result;
}

/* Two GPUs of one `island` are joined by NVLink; without islands every pair is below one CPU. */
static bool one_island(nvmlDevice_t one, nvmlDevice_t other)
{
    long long mine = state_number(-1, "gpus.%d.island", place_of(one));
    return mine >= 0 && mine == state_number(-2, "gpus.%d.island", place_of(other));
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, int index, unsigned *status)
{
    nvmlReturn_t result = ask("nvmlDeviceGetP2PStatus", one);
    (void)index;
    *status = one_island(one, other) ? 0 : 5;
    return result;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level)
{
    nvmlReturn_t result = ask("nvmlDeviceGetTopologyCommonAncestor", one);
    *level = one_island(one, other) ? 10 : 40;
    return result;
}

/* --- memory and who holds it --------------------------------------------------------------------------------- */

struct holders {
    struct process_info *into;
    unsigned room, count;
    unsigned long long used;
};

static void hold(struct holders *all, unsigned pid, unsigned long long used)
{
    if (all->count < all->room && all->into)
        all->into[all->count] =
            (struct process_info){.pid = pid, .used = used, .gpu_instance = ~0u, .compute_instance = ~0u};
    all->count++;
    if (used != NO_VALUE)
        all->used += used;
}

/* `claims/<pid>` next to the state file: lines `<uuid> <bytes>`, dropped by a process for as long as it lives. */
static void count_claims(int place, struct holders *all)
{
    char path[PATH_MAX + 300], uuid[128];
    unsigned long long used;
    struct dirent *entry;
    snprintf(path, sizeof path, "%s/claims", state_folder());
    DIR *folder = opendir(path);
    while (folder && (entry = readdir(folder)) != NULL) {
        char *end;
        long pid = strtol(entry->d_name, &end, 10);
        if (*end || pid <= 0 || kill((pid_t)pid, 0) != 0)
            continue;
        snprintf(path, sizeof path, "%s/claims/%s", state_folder(), entry->d_name);
        FILE *file = fopen(path, "re");
        while (file && fscanf(file, "%127s %llu", uuid, &used) == 2)
            if (strcmp(uuid, state_text("gpus.%d.uuid", place)) == 0)
                hold(all, (unsigned)pid, used);
        if (file)
            fclose(file);
    }
    if (folder)
        closedir(folder);
}

static void count_holders(int place, struct holders *all)
{
    for (int i = 0; state_text("gpus.%d.processes.%d.pid", place, i); i++)
        hold(all, (unsigned)state_number(0, "gpus.%d.processes.%d.pid", place, i),
             (unsigned long long)state_number((long long)NO_VALUE, "gpus.%d.processes.%d.memory", place, i));
    count_claims(place, all);
}

static nvmlReturn_t memory_of(const char *call, nvmlDevice_t device, unsigned long long *total,
                              unsigned long long *used)
{
    struct holders all = {0};
    nvmlReturn_t result = ask(call, device);
    if (result != SUCCESS)
        return result;
    count_holders(place_of(device), &all);
    *total = (unsigned long long)state_number(0, "gpus.%d.memory.total", place_of(device));
    *used = (unsigned long long)state_number(0, "gpus.%d.memory.used", place_of(device)) + all.used;
    if (*used > *total)
        *used = *total;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory *into)
{
    nvmlReturn_t result = memory_of("nvmlDeviceGetMemoryInfo", device, &into->total, &into->used);
    into->free = into->total - into->used;
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *into)
{
    if (into->version != MEMORY_V2)
        return ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = memory_of("nvmlDeviceGetMemoryInfo_v2", device, &into->total, &into->used);
    into->free = into->total - into->used;
    into->reserved = 0;
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                     struct process_info *into)
{
    struct holders all = {.into = into, .room = *count};
    nvmlReturn_t result = ask("nvmlDeviceGetComputeRunningProcesses_v3", device);
    if (result != SUCCESS)
        return result;
    count_holders(place_of(device), &all);
    bool fits = all.count <= *count;
    *count = all.count;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                      struct process_info *into)
{
    nvmlReturn_t result = ask("nvmlDeviceGetGraphicsRunningProcesses_v3", device);
    (void)into;
    *count = 0;
    return result;
}
