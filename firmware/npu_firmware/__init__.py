"""The firmware of the management core. Reached only through its image, npu_fw.bin, which names `npu_firmware.boot:entry`."""
