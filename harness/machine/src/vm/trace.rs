//! QEMU's log of the code that it translates, which is what is about to run.

/// The log, in the machine's directory.
pub const LOG: &str = "executed.log";

/// The kernel's own part of the address space, its modules included.
pub const KERNEL: u64 = 0xffff_ffff_8000_0000;

/// QEMU's options that write it.
pub fn options(log: &str) -> [String; 6] {
    let filter = format!("{KERNEL:#x}+{:#x}", u64::MAX - KERNEL);
    ["-d", "in_asm", "-dfilter", &filter, "-D", log].map(str::to_owned)
}
