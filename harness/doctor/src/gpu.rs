//! Why a driver that supports it does not give peers pages of a GPU's memory. For drivers
//! without that support, known.toml has the reason.

use crate::capture;
use crate::host::{Device, Host};
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
    all
}
