# A CPU image of the checkout: docker build -t fsdp-lab . && docker run --rm -it --shm-size=1g fsdp-lab
FROM python:3.12-slim
# a compiler for torch.compile; iproute2 for emulated links; git for the commit in results rows
RUN apt-get update && apt-get install -y --no-install-recommends g++ git iproute2 libjemalloc2 && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home lab
USER lab
WORKDIR /home/lab/fsdp-comm-compress
ENV PATH=/home/lab/venv/bin:$PATH
COPY --chown=lab . .
RUN python -m venv /home/lab/venv \
    && pip install --no-cache-dir -c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu -e '.[lab,analysis]'
CMD ["bash"]
