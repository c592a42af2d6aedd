//! Finds reports of the kernel's own checks in a log: KASAN, lockdep, RCU, DMA-API,
//! kmemleak, and every other BUG or WARNING.

const CUT_HERE: &str = "------------[ cut here ]";

/// The text that starts a report, even after the first lines of another one.
const STARTS: [&str; 14] = [
    CUT_HERE,
    "BUG:",
    "kernel BUG at",
    "INFO: task ",
    "Bad rss-counter",
    "new suspected memory leaks",
    "hung_task:",
    // Memory of a GPU that is gone.
    "device private memory: content of page",
    // An IOMMU stopped DMA: VT-d, virtio-iommu, SMMUv3.
    "DMAR: [DMA",
    " fault from EP ",
    " event: F_",
    " event: C_",
    "EVTQ overflow",
    // The log has gaps.
    "printk messages dropped",
];

/// The text that starts a report, or belongs to the one that has started.
const MARKS: [&str; 15] = [
    "WARNING:",
    "KASAN:",
    "UBSAN:",
    "Oops:",
    "general protection fault",
    "Kernel panic",
    "INFO: trying to register non-static key",
    "INFO: possible recursive",
    "rcu_sched self-detected stall",
    "rcu_preempt self-detected stall",
    "stalls on CPUs",
    "suspicious RCU usage",
    "refcount_t:",
    "Bad page state",
    "Bad page map",
];

/// The text that ends a warning or a sanitizer report.
const ENDS: [&str; 2] = ["---[ end trace", "=================================="];

/// Messages of the DMA-API debugging that report no error.
const DMA_API_CONTENT: [&str; 3] = ["preallocated", "debugging enabled", "debugging drivers"];

/// The maximum number of lines of a report.
const CONTEXT: usize = 30;

/// The reports in a log, each with its following lines.
pub fn reports(log: &str) -> Vec<String> {
    let lines: Vec<_> = log.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        if !begins_report(lines[at]) {
            at += 1;
            continue;
        }
        // What follows is another report, even if this one is allowed.
        let end = at + length(&lines[at..]);
        found.push(lines[at..end].join("\n"));
        at = end;
    }
    found
}

/// The number of lines of the report that begins with these lines. It ends at the kernel's end
/// mark, if there is one, or before another report.
fn length(lines: &[&str]) -> usize {
    if lines[0].contains("DMA-API: ") {
        return 1;
    }
    let most = lines.len().min(CONTEXT);
    for (at, line) in lines[..most].iter().enumerate().skip(1) {
        if has(line, &ENDS) {
            return at + 1;
        }
        // The line below "cut here" says what it is.
        let is_title = at == 1 && lines[0].contains(CUT_HERE);
        if starts_another(line) && !is_title {
            return at;
        }
    }
    most
}

/// Whether a test causes the report on purpose. The first lines of a report identify it.
/// lockdep names the lock in the fifth line.
pub fn is_allowed(report: &str, allowed: &[String]) -> bool {
    report
        .lines()
        .take(5)
        .any(|line| allowed.iter().any(|text| line.contains(text)))
}

fn begins_report(line: &str) -> bool {
    starts_another(line) || has(line, &MARKS)
}

fn starts_another(line: &str) -> bool {
    match line.split_once("DMA-API: ") {
        Some((_, said)) => !has(said, &DMA_API_CONTENT),
        None => has(line, &STARTS),
    }
}

fn has(line: &str, marks: &[&str]) -> bool {
    marks.iter().any(|mark| line.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_log_has_none() {
        let log = "[    0.0] Linux version 7.3\n\
                   [    0.1] DMA-API: preallocated 65536 debug entries\n\
                   [    0.1] DMA-API: debugging enabled by kernel config\n\
                   [    0.1] kmemleak: Kernel memory leak detector initialized\n\
                   [    0.1] Lock dependency validator: Copyright (c) 2006\n\
                   qemu-system-x86_64: warning: TCG doesn't support requested feature\n";
        assert_eq!(reports(log), Vec::<String>::new());
    }

    #[test]
    fn each_kind_is_found() {
        for line in [
            "BUG: KASAN: slab-use-after-free in f+0x1/0x2",
            "BUG: KCSAN: data-race in f / g",
            "BUG: KFENCE: use-after-free read in f+0x1/0x2",
            "UBSAN: shift-out-of-bounds in mm/hmm.c:1:2",
            "WARNING: possible circular locking dependency detected",
            "WARNING: CPU: 0 PID: 1 at mm/hmm.c:1 f+0x1/0x2",
            "WARNING: suspicious RCU usage",
            "BUG: sleeping function called from invalid context at a.c:1",
            "DMA-API: pci 0000:01:00.0: device driver frees DMA memory with wrong function",
            "kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
            "INFO: task sh:1 blocked for more than 120 seconds.",
            "kernel BUG at mm/memory.c:1!",
            "refcount_t: underflow; use-after-free.",
            "rust_kernel: device private memory: content of page 7 lost",
            "DMAR: [DMA Write NO_PASID] Request device [02:00.0] fault addr 0xffff0000",
            "virtio_iommu virtio0: page fault from EP 16 at 0x1000 [ W ]",
            "arm-smmu-v3 9050000.iommu: event: F_TRANSLATION client: 0000:03:00.0 sid: 0x300",
            "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-... }",
            "** 17 printk messages dropped **",
        ] {
            let log = format!("[    1.000000] {line}\n[    1.0] after\n");
            assert_eq!(reports(&log).len(), 1, "{line}");
        }
    }

    #[test]
    fn only_what_a_report_begins_with_can_be_allowed() {
        let allowed = ["overflow (mask".to_owned()];
        let report = "cut here\nnic: DMA addr 1 overflow (mask 7)\nWARNING: a.c:1";
        assert!(is_allowed(report, &allowed));
        assert!(!is_allowed(report, &[]));
        assert!(!is_allowed(
            "BUG: x\na\nb\nc\nd\noverflow (mask 7)",
            &allowed
        ));
        let lockdep = "WARNING: possible circular locking dependency detected\n7.3.0\n----\n\
                       a/1 is trying to acquire lock:\nffff (&a->mutex){+.+.}-{4:4}, at: f+0x1";
        assert!(is_allowed(lockdep, &["(&a->mutex)".to_owned()]));
    }

    #[test]
    fn a_race_that_is_allowed_hides_no_other() {
        let frame = "[ 1.0] ==================================================================";
        let log = format!(
            "{frame}\n[ 1.0] BUG: KCSAN: data-race in a / b\n[ 1.0] write to 0x1\n{frame}\n\
             {frame}\n[ 1.0] BUG: KCSAN: data-race in c / d\n[ 1.0] read to 0x1\n{frame}\n"
        );
        let allowed = ["data-race in a / b".to_owned()];
        let found = reports(&log);
        assert_eq!(found.len(), 2);
        assert!(is_allowed(&found[0], &allowed));
        assert!(!is_allowed(&found[1], &allowed));
    }

    #[test]
    fn a_line_that_is_allowed_hides_nothing_after_it() {
        let line = "[ 1.0] DMA-API: cacheline tracking ENOMEM, dma-debug disabled";
        let warning = "[ 1.0] ------------[ cut here ]------------\n\
                       [ 1.0] DMA-API: nic: device driver frees DMA memory\n\
                       [ 1.0] WARNING: CPU: 0 PID: 1 at a.c:1\n\
                       [ 1.0] Modules linked in:\n";
        let allowed = ["cacheline tracking ENOMEM".to_owned()];
        let found = reports(&format!("{line}\n{warning}"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(is_allowed(&found[0], &allowed));
        assert!(!is_allowed(&found[1], &allowed));
        assert!(found[1].ends_with("linked in:"), "a warning has its text");
        let lockdep = format!("{line}\n[ 1.0] WARNING: possible recursive locking detected\n");
        assert_eq!(reports(&lockdep).len(), 2);
        let later = [
            "BUG: sleeping function called from invalid context at a.c:1",
            "BUG: Bad rss-counter state mm:1 type:2 val:3",
            "kmemleak: 1 new suspected memory leaks",
            "INFO: task sh:1 blocked for more than 120 seconds.",
        ];
        for later in later {
            // Neither forgives the other.
            let found = reports(&format!("{warning}[ 1.0] {later}\n{line}\n"));
            assert_eq!(found.len(), 3, "{found:?}");
            assert!(found[1].contains(later));
            assert!(!is_allowed(&found[1], &allowed));
        }
    }

    #[test]
    fn one_report_is_counted_once() {
        let log = "[ 1.0] ------------[ cut here ]------------\n\
                   [ 1.0] WARNING: CPU: 0 PID: 1 at a.c:1\n\
                   [ 1.0] ---[ end trace 0000000000000000 ]---\n\
                   [ 1.0] BUG: Bad page state\n";
        let found = reports(log);
        assert_eq!(found.len(), 2);
        assert!(found[0].ends_with("]---"));
    }
}
