//! What the results of a machine depend on besides what it boots, for [`results::cache`].

use anyhow::Result;

use super::Booter;
use super::model::{Device, program};
use plan::topology::Kind;
use results::cache::Inputs;
use setup::qemu;

impl Booter<'_> {
    /// Adds all that machines of a kind are made of: QEMU, the models of devices, and the
    /// guest's side.
    pub fn inputs(&self, inputs: &mut Inputs, kind: Kind) -> Result<()> {
        inputs.text(&format!("{:?}", self.machine));
        inputs.text(&self.qemu_args.join(" "));
        // Its version is in its path, and the cache may be anybody's.
        let vng_dir = &self.tools.vng_dir;
        let vng_dir = vng_dir.strip_prefix(&self.paths.cache).unwrap_or(vng_dir);
        inputs.text(&vng_dir.to_string_lossy());
        match kind {
            Kind::Counting => {
                if let Some(qemu) = qemu::found(self.qemu) {
                    inputs.path(&qemu)?;
                }
            }
            Kind::Parallel => {
                inputs.path(&qemu::with_vfio_user(self.paths, self.ui, self.qemu)?)?;
                for device in [Device::ConnectX, Device::Pascal] {
                    inputs.path(&program(self.paths, device))?;
                }
                // The model of a ConnectX reads them.
                inputs.path(&self.paths.tree().join("include/linux/mlx5"))?;
            }
        }
        inputs.path(&self.paths.root.join("harness/guest"))
    }
}
