/* devices.c - devices and contexts. */
#include "expect.h"

static void devices(void)
{
    uint32_t count = 0, device = 9;
    int64_t value = 0;
    npu_device_properties_t properties = {.size = sizeof properties};

    OK(npu_get_device_count(&count));
    claim(count == 2);
    expect(NPU_ERROR_NULL_POINTER, npu_get_device_count(NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_device_count(BAD));
    OK(npu_set_device(1));
    OK(npu_get_device(&device));
    claim(device == 1);
    OK(npu_set_device(0));
    expect(NPU_ERROR_INVALID_VALUE, npu_set_device(2));
    expect(NPU_ERROR_NULL_POINTER, npu_get_device(NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_device(BAD));
    OK(npu_get_device_properties(&properties, 0));
    claim(properties.tile_count >= 1 && properties.profile[0] != 0);
    expect(NPU_ERROR_INVALID_VALUE, npu_get_device_properties(&properties, 2));
    expect(NPU_ERROR_NULL_POINTER, npu_get_device_properties(NULL, 0));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_device_properties(BAD, 0));
    properties.size--;
    expect(NPU_ERROR_INVALID_SIZE, npu_get_device_properties(&properties, 0));
    OK(npu_device_get_attribute(&value, NPU_ATTR_COHERENT, 0));
    claim(value == 1);
    expect(NPU_ERROR_NULL_POINTER, npu_device_get_attribute(NULL, NPU_ATTR_TILES, 0));
    expect(NPU_ERROR_BAD_ADDRESS, npu_device_get_attribute(BAD, NPU_ATTR_TILES, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_device_get_attribute(&value, NPU_ATTR_COUNT, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_device_get_attribute(&value, NPU_ATTR_TILES, 2));
}

static void reset(void)
{
    void *memory = allocate(64);

    OK(npu_reset_device());
    expect(NPU_ERROR_STALE_HANDLE, npu_free(memory));
    OK(npu_synchronize_device());
}

static void contexts(void)
{
    npu_context_t context = NULL, other = NULL, found = (npu_context_t)BAD, many[256];
    npu_result_t result = NPU_SUCCESS;
    int count = 0;
    void *memory;

    expect(NPU_ERROR_NULL_POINTER, npu_create_context(NULL, 0));
    expect(NPU_ERROR_BAD_ADDRESS, npu_create_context(BAD, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_create_context(&context, 1));
    OK(npu_get_current_context(&found));
    claim(found == NULL);
    OK(npu_create_context(&context, 0));
    OK(npu_get_current_context(&found));
    claim(found == context);
    expect(NPU_ERROR_NULL_POINTER, npu_get_current_context(NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_current_context(BAD));
    OK(npu_create_context(&other, 0));
    OK(npu_set_current_context(context));
    expect(NPU_ERROR_INVALID_HANDLE, npu_set_current_context(MADE_UP(npu_context_t)));
    memory = allocate(64);
    OK(npu_synchronize_context());
    expect(NPU_ERROR_IN_USE, npu_destroy_context(context, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_destroy_context(context, 2));
    expect(NPU_ERROR_INVALID_HANDLE, npu_destroy_context(NULL, 0));
    OK(npu_free(memory));
    OK(npu_destroy_context(context, 0));
    OK(npu_destroy_context(other, NPU_DESTROY_FORCE));
    expect(NPU_ERROR_STALE_HANDLE, npu_destroy_context(context, 0));
    expect(NPU_ERROR_STALE_HANDLE, npu_set_current_context(context));
    OK(npu_get_current_context(&found));
    claim(found == NULL);
    while (count < 256 && is(NPU_SUCCESS, result = npu_create_context(&many[count], 0)))
        count++;
    expect(NPU_ERROR_OUT_OF_RESOURCES, result);
    while (count > 0)
        OK(npu_destroy_context(many[--count], 0));
}

int main(int argc, char **argv)
{
    (void)argc;
    setenv("NPU_PROFILE", "npu-37xx,npu-37xx", 1);
    begin(argv);
    devices();
    reset();
    contexts();
    return finish();
}
