/* Which GPU it is, and what its sensors and modes say. */
#include "ask.h"

#define NAME(call, key)                                                                                      \
    API nvmlReturn_t call(nvmlDevice_t device, char *into, unsigned size)                                    \
    {                                                                                                        \
        return give_name(#call, device, key, into, size);                                                    \
    }
#define NUMBER(call, key)                                                                                    \
    API nvmlReturn_t call(nvmlDevice_t device, unsigned *into)                                               \
    {                                                                                                        \
        return give_number(#call, device, key, into);                                                        \
    }

NAME(nvmlDeviceGetUUID, "uuid")
NAME(nvmlDeviceGetName, "name")
NAME(nvmlDeviceGetSerial, "serial")
NAME(nvmlDeviceGetBoardPartNumber, "part_number")
NAME(nvmlDeviceGetVbiosVersion, "vbios")
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetBrand, "brand")
NUMBER(nvmlDeviceGetArchitecture, "architecture")
NUMBER(nvmlDeviceGetNumaNodeId, "numa")
NUMBER(nvmlDeviceGetPowerUsage, "power")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.generation_max")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width_max")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie.replays")

/* The limit that was set; the one that is enforced is the lowest of several. */
API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *into)
{
    nvmlReturn_t result = give_number("nvmlDeviceGetPowerManagementLimit", device, "power_limit", into);
    if (result == NVML_SUCCESS)
        *into = (unsigned)GPU_NUMBER(place_of(device), *into, "power_limit_set");
    return result;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *into)
{
    unsigned gpu = 0;
    if (users && !into)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = give_number("nvmlDeviceGetUtilizationRates", device, "util", &gpu);
    if (result == NVML_SUCCESS)
        *into = (struct utilization){gpu, (unsigned)GPU_NUMBER(place_of(device), 0, "util_memory")};
    return result;
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    nvmlReturn_t result = give_number("nvmlDeviceGetMigMode", device, "mig", pending ? current : NULL);
    if (result == NVML_SUCCESS)
        *pending = (unsigned)GPU_NUMBER(place_of(device), *current, "mig_pending");
    return result;
}

/* --- temperatures, °C -------------------------------------------------------------------------------------- */

/* The only sensor that a GPU is asked for is 0, NVML_TEMPERATURE_GPU. */
API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *into)
{
    return give_number("nvmlDeviceGetTemperature", device, "temperature", sensor == 0 ? into : NULL);
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature *into)
{
    unsigned found = 0;
    if (users && into && into->version != VERSION(struct temperature, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    bool good = into && into->sensor == 0;
    nvmlReturn_t result = give_number("nvmlDeviceGetTemperatureV", device, "temperature", good ? &found : NULL);
    if (result == NVML_SUCCESS)
        into->temperature = (int)found;
    return result;
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *into)
{
    static const char *const KEYS[] = {"thresholds.shutdown", "thresholds.slowdown", "thresholds.memory_max",
                                       "thresholds.gpu_max"};
    bool known = threshold < sizeof KEYS / sizeof *KEYS;
    return give_number("nvmlDeviceGetTemperatureThreshold", device, known ? KEYS[threshold] : KEYS[0],
                       known ? into : NULL);
}

/* --- clocks, MHz -------------------------------------------------------------------------------------------- */

/* Types of clock: 0 graphics, 1 SM, 2 memory, 3 video. */
API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *into)
{
    return give_number("nvmlDeviceGetClockInfo", device, type == 2 ? "memory_clock" : "clock",
                       type <= 3 ? into : NULL);
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *into)
{
    return give_number("nvmlDeviceGetMaxClockInfo", device, type == 2 ? "memory_clock_max" : "clock_max",
                       type <= 3 ? into : NULL);
}

static nvmlReturn_t reasons(const char *call, nvmlDevice_t device, unsigned long long *into)
{
    nvmlReturn_t result = ask(call, device, into);
    if (result != NVML_SUCCESS)
        return result;
    if (!GPU_TEXT(place_of(device), "throttle"))
        return NVML_ERROR_NOT_SUPPORTED;
    *into = (unsigned long long)GPU_NUMBER(place_of(device), 0, "throttle");
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *into)
{
    return reasons("nvmlDeviceGetCurrentClocksEventReasons", device, into);
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *into)
{
    return reasons("nvmlDeviceGetCurrentClocksThrottleReasons", device, into);
}
