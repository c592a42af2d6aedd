//! Why peers get no page of a GPU's memory by a driver that could give them some. Of the
//! drivers that never do, known.toml says why.

use crate::capture;
use crate::host::{Device, Gc, Host};
use crate::known::{Driver, Known};
use crate::report::Code;

/// What is in the way, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its kind.
    pub code: Code,
    /// Why; of an option of the kernel, its name.
    pub why: String,
    /// What to do.
    pub next: String,
}

/// What amdgpu can give peers pages of.
const COHERENT: &str = "a GPU with GC 9.0.1 to 9.4.2 (Vega, MI100, MI200), 10 or 11 (RDNA 1 to 3) \
                        that is not part of a CPU";

/// All that is in the way, by the rules of its driver.
pub fn refusals(host: &Host, known: &Known, driver: &Driver, gpu: &Device) -> Vec<Refusal> {
    let has_series = host.picture.read(capture::POLICY).is_some();
    let off = driver
        .options(has_series)
        .filter(|option| host.option(option) == Some(false));
    let mut all: Vec<_> = off
        .map(|option| Refusal {
            code: Code::KernelOption,
            why: option.to_owned(),
            next: format!(
                "build the kernel with {option}=y, which {} needs for it",
                driver.name
            ),
        })
        .collect();
    if let Some(generation) = known.generation(&driver.name, gpu.device)
        && let Some(not) = &generation.not
    {
        all.push(Refusal {
            code: Code::Generation,
            why: format!("{}; {not}", generation.name),
            next: generation.next.clone(),
        });
    }
    if driver.name == "amdgpu" {
        // Without the option, it is plain why it has none.
        let has_memory = host
            .has_device_memory(gpu)
            .filter(|has| *has || all.is_empty());
        all.extend(amdgpu(host, known, gpu, has_memory));
    }
    all
}

/// Rules of svm_migrate_register_p2p() and kgd2kfd_init_zone_device().
fn amdgpu(host: &Host, known: &Known, gpu: &Device, has_memory: Option<bool>) -> Option<Refusal> {
    let generation = |why: String, next: &str| {
        Some(Refusal {
            code: Code::Generation,
            why,
            next: next.to_owned(),
        })
    };
    // A guest reaches even this one's memory through a BAR.
    if known.is_apu(gpu.gc, gpu.device) && !host.cpu.is_virtual {
        let why = "an APU, whose memory is the host's and behind no BAR";
        return generation(why.to_owned(), COHERENT);
    }
    if let Some(gc) = gpu.gc.filter(|gc| !gc.is_coherent()) {
        let why = format!("GC {gc} caches its memory so that it may not see what peers write");
        return generation(why, COHERENT);
    }
    if has_memory == Some(false) {
        let why = "amdgpu registered no device private memory";
        return match gpu.gc {
            Some(Gc::MI200) => generation(
                format!("{why} for an MI200"),
                "if xGMI connects it to the CPU, its memory is device coherent, in which the \
                 series has no part; else see the kernel's log",
            ),
            Some(gc) => generation(
                format!("{why} for GC {gc}"),
                "see what the kernel's log says of amdgpu",
            ),
            None => generation(
                format!("{why}, as for all that are older than GC 9.0.1"),
                COHERENT,
            ),
        };
    }
    // Without the option, amdgpu does not look at it there.
    let is_off = host.picture.read(capture::AMDGPU_P2P) == Some("N")
        && host.option("CONFIG_HSA_AMD_P2P") != Some(false);
    is_off.then(|| Refusal {
        code: Code::Policy,
        why: capture::AMDGPU_P2P.to_owned(),
        next: "amdgpu.pcie_p2p=1 on the kernel's command line".to_owned(),
    })
}
