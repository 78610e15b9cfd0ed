"""Other people's trainers, with one line more: Accelerate, Hugging Face's Trainer, Lightning Fabric, peft."""
