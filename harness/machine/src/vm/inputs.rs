//! What the results of a machine depend on besides its kernel, for [`results::cache`].

use anyhow::Result;

use super::Booter;
use super::model::{Device, program};
use plan::arch::Arch;
use plan::topology::Kind;
use results::cache::Inputs;
use setup::qemu;

impl Booter<'_> {
    /// Adds everything that a kind of machine consists of: QEMU, the device models, and
    /// the guest's scripts.
    pub fn inputs(&self, inputs: &mut Inputs, arch: Arch, kind: Kind) -> Result<()> {
        inputs.text(&format!("{:?}", self.machine));
        inputs.text(&self.qemu_args.join(" "));
        // The path contains vng's version. The location of the cache does not count.
        let vng_dir = &self.tools.vng_dir;
        let vng_dir = vng_dir.strip_prefix(&self.paths.cache).unwrap_or(vng_dir);
        inputs.text(&vng_dir.to_string_lossy());
        match kind {
            Kind::Counting => {
                if let Some(qemu) = qemu::found(arch, self.qemu) {
                    inputs.path(&qemu)?;
                }
            }
            Kind::Parallel => {
                inputs.path(&qemu::with_vfio_user(self.paths, self.ui, arch, self.qemu)?)?;
                for device in [Device::ConnectX, Device::Pascal] {
                    inputs.path(&program(self.paths, device))?;
                }
                // The ConnectX model reads these headers.
                inputs.path(&self.paths.tree().join("include/linux/mlx5"))?;
            }
        }
        inputs.path(&self.paths.root.join("harness/guest"))
    }
}
