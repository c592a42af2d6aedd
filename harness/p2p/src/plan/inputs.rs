//! What the results of a job depend on, for [`crate::kept`].

use anyhow::Result;

use super::{Job, split, words};
use crate::kept::Inputs;
use crate::kernel::Built;
use crate::paths::Paths;
use crate::setup::qemu::with_vfio_user;
use crate::vm::Booter;
use crate::vm::model::{Device, program};

impl Job<'_> {
    /// All that its machine is made of; what it runs must be built.
    pub fn inputs(&self, booter: &Booter<'_>, paths: &Paths) -> Result<Inputs> {
        let mut inputs = Inputs::new()?;
        inputs.text(&format!("{:?}", self.spec));
        inputs.text(&format!("{:?}", self.topology));
        inputs.text(&format!("{:?}", booter.machine));
        inputs.text(&booter.tools.vng_dir.to_string_lossy());
        if let Some(qemu) = booter.qemu {
            inputs.file(qemu)?;
        }
        if self.is_parallel() {
            let qemu = with_vfio_user(paths, booter.ui, booter.qemu)?;
            inputs.text(&qemu.to_string_lossy());
            for device in [Device::ConnectX, Device::Pascal] {
                inputs.file(&program(paths, device))?;
            }
        }
        let kernel = Built::at(paths, &self.kernel);
        inputs.file(&kernel.image())?;
        if !self.spec.load.is_empty() {
            inputs.folder(&kernel.modules())?;
        }
        let programs = self.spec.from.as_deref().unwrap_or(&self.kernel);
        for program in &self.spec.programs {
            let (folder, name) = split(words(program).0);
            inputs.file(&Built::at(paths, programs).selftests(folder).join(name))?;
        }
        inputs.folder(&paths.root.join("harness/guest"))?;
        Ok(inputs)
    }
}
