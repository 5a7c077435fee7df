/* A GPU's memory, and the processes that hold it. */
#include "ask.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "not available" of usedGpuMemory */
static const unsigned long long NO_VALUE = ~0ULL;

enum kind { COMPUTE, GRAPHICS, ANY };

struct holders {
    enum kind wanted;
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

/* When a process was started, in ticks since the boot (proc(5), stat, field 22); 0 where it does not live. A zombie
 * holds no memory any more. */
static unsigned long long started(long pid)
{
    char path[64], line[1024], state = 'Z';
    unsigned long long ticks = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[length] = '\0';
    const char *rest = strrchr(line, ')'); /* a name may hold anything */
    if (!rest || sscanf(rest, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                        &state, &ticks) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : ticks;
}

/* A line `start <ticks>` says which process of this pid is meant; the others, `<uuid> <bytes>`, what it holds. */
static void count_claim(const char *path, long pid, const char *uuid, struct holders *all)
{
    char line[256], name[128];
    unsigned long long number, held = 0, since = started(pid);
    bool any = false;
    FILE *file = since ? fopen(path, "re") : NULL;
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%127s %llu", name, &number) != 2)
            continue;
        if (strcmp(name, "start") == 0 && number != since) {
            any = false;
            break;
        }
        if (strcmp(name, uuid) == 0) {
            any = true;
            held += number;
        }
    }
    fclose(file);
    if (any)
        hold(all, (unsigned)pid, held);
}

/* `claims/<pid>` next to the state file, dropped by a process that computes. */
static void count_claims(int place, struct holders *all)
{
    char path[PATH_MAX + 300];
    const char *uuid = GPU_TEXT(place, "uuid");
    struct dirent *entry;
    snprintf(path, sizeof path, "%s/claims", state_folder());
    DIR *folder = opendir(path);
    while (folder && (entry = readdir(folder)) != NULL) {
        char *end;
        long pid = strtol(entry->d_name, &end, 10);
        if (!isdigit((unsigned char)*entry->d_name) || *end || pid <= 0 || pid > INT_MAX)
            continue;
        snprintf(path, sizeof path, "%s/claims/%s", state_folder(), entry->d_name);
        count_claim(path, pid, uuid, all);
    }
    if (folder)
        closedir(folder);
}

static void count_holders(int place, struct holders *all)
{
    for (int i = 0; GPU_TEXT(place, "processes.%d.pid", i); i++) {
        enum kind kind = GPU_NUMBER(place, 0, "processes.%d.graphics", i) ? GRAPHICS : COMPUTE;
        if (all->wanted == ANY || all->wanted == kind)
            hold(all, (unsigned)GPU_NUMBER(place, 0, "processes.%d.pid", i),
                 (unsigned long long)GPU_NUMBER(place, (long long)NO_VALUE, "processes.%d.memory", i));
    }
    if (all->wanted != GRAPHICS)
        count_claims(place, all);
}

static nvmlReturn_t memory_of(const char *call, nvmlDevice_t device, const void *out, struct memory_v2 *into)
{
    struct holders all = {.wanted = ANY};
    int place = place_of(device);
    nvmlReturn_t result = ask(call, device, out);
    if (result != NVML_SUCCESS)
        return result;
    if (!GPU_TEXT(place, "memory.total"))
        return NVML_ERROR_NOT_SUPPORTED;
    count_holders(place, &all);
    into->total = (unsigned long long)GPU_NUMBER(place, 0, "memory.total");
    into->reserved = (unsigned long long)GPU_NUMBER(place, 0, "memory.reserved");
    if (into->reserved > into->total)
        into->reserved = into->total;
    into->used = (unsigned long long)GPU_NUMBER(place, 0, "memory.used") + all.used;
    if (into->used > into->total - into->reserved)
        into->used = into->total - into->reserved;
    into->free = into->total - into->reserved - into->used;
    return NVML_SUCCESS;
}

/* The older form counts what the driver reserves as used. */
API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory *into)
{
    struct memory_v2 all;
    nvmlReturn_t result = memory_of("nvmlDeviceGetMemoryInfo", device, into, &all);
    if (result == NVML_SUCCESS)
        *into = (struct memory){.total = all.total, .free = all.free, .used = all.used + all.reserved};
    return result;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *into)
{
    if (users && into && into->version != VERSION(struct memory_v2, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return memory_of("nvmlDeviceGetMemoryInfo_v2", device, into, into);
}

static nvmlReturn_t processes(const char *call, enum kind wanted, nvmlDevice_t device, unsigned *count,
                              struct process_info *into)
{
    nvmlReturn_t result = ask(call, device, count);
    if (result != NVML_SUCCESS)
        return result;
    struct holders all = {.wanted = wanted, .into = into, .room = *count};
    count_holders(place_of(device), &all);
    *count = all.count;
    return all.count > all.room || (all.count && !into) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                         struct process_info *into)
{
    return processes("nvmlDeviceGetComputeRunningProcesses_v3", COMPUTE, device, count, into);
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                          struct process_info *into)
{
    return processes("nvmlDeviceGetGraphicsRunningProcesses_v3", GRAPHICS, device, count, into);
}
