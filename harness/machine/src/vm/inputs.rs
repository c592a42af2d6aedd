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
        inputs.text(&self.tools.vng_dir.to_string_lossy());
        match kind {
            Kind::Counting => {
                if let Some(qemu) = qemu::found(self.qemu) {
                    inputs.file(&qemu)?;
                }
            }
            Kind::Parallel => {
                inputs.file(&qemu::with_vfio_user(self.paths, self.ui, self.qemu)?)?;
                for device in [Device::ConnectX, Device::Pascal] {
                    inputs.file(&program(self.paths, device))?;
                }
                // The model of a ConnectX reads them.
                inputs.folder(&self.paths.tree().join("include/linux/mlx5"))?;
            }
        }
        inputs.folder(&self.paths.root.join("harness/guest"))
    }
}
