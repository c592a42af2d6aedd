//! Why a driver that supports it does not give peers pages of a GPU's memory. For drivers
//! without that support, known.toml has the reason.

use crate::capture;
use crate::host::{Device, Gc, Host};
use crate::known::{Driver, Known};
use crate::report::Code;

/// An obstacle, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its kind.
    pub code: Code,
    /// The reason. For a kernel option, its name.
    pub why: String,
    /// What to do.
    pub next: String,
}

/// The GPUs whose pages amdgpu can give to peers.
const COHERENT: &str = "a GPU with GC 9.0.1 to 9.4.2 (Vega, MI100, MI200), 10 or 11 (RDNA 1 to 3) \
                        that is not part of a CPU";

/// All obstacles, by the rules of the GPU's driver.
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
        // Without the option, the missing memory needs no further reason.
        let has_memory = host
            .has_device_memory(gpu)
            .filter(|has| *has || all.is_empty());
        all.extend(amdgpu(host, known, gpu, has_memory));
    }
    all
}

/// The rules of svm_migrate_register_p2p() and kgd2kfd_init_zone_device().
fn amdgpu(host: &Host, known: &Known, gpu: &Device, has_memory: Option<bool>) -> Option<Refusal> {
    let generation = |why: String, next: &str| {
        Some(Refusal {
            code: Code::Generation,
            why,
            next: next.to_owned(),
        })
    };
    // A guest reaches even an APU's memory through a BAR.
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
    // Without the option, amdgpu ignores the parameter here.
    let is_off = host.picture.read(capture::AMDGPU_P2P) == Some("N")
        && host.option("CONFIG_HSA_AMD_P2P") != Some(false);
    is_off.then(|| Refusal {
        code: Code::Policy,
        why: capture::AMDGPU_P2P.to_owned(),
        next: "amdgpu.pcie_p2p=1 on the kernel's command line".to_owned(),
    })
}
