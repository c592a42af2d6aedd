//! QEMU's log of the code that it translates, right before that code runs.

/// The log, in the machine's directory.
pub const LOG: &str = "executed.log";

/// The start of the kernel's code, including modules.
pub const KERNEL: u64 = 0xffff_ffff_8000_0000;

/// QEMU's options for that log.
pub fn options(log: &str) -> [String; 6] {
    let filter = format!("{KERNEL:#x}+{:#x}", u64::MAX - KERNEL);
    ["-d", "in_asm", "-dfilter", &filter, "-D", log].map(str::to_owned)
}
