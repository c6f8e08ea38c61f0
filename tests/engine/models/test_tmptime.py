import time, torch
from .test_smollm2 import *
from voxlane.engine.kernels import native
def test_t(reference, decoder, prompts):
    a=time.time(),time.process_time()
    wanted = reference_greedy(reference, prompts, 16)
    b=time.time(),time.process_time()
    found = Pager(decoder, blocks=20 * 16).greedy(prompts, 16)
    c=time.time(),time.process_time()
    print("HF wall/cpu", b[0]-a[0],b[1]-a[1],"ours",c[0]-b[0],c[1]-b[1], torch.get_num_threads(), native._library, sum(map(len,prompts)))
